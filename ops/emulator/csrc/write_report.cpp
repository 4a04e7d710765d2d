// The report as JSON; report.py reads it.
#include <cmath>

#include "json.h"
#include "machine.h"
#include "replay.h"
#include "write_report.h"

namespace emu {

namespace {

constexpr const char* ORDERS[] = {"", "barrier", "flag", "cross-flag", "queue", "reuse", "sync-all"};

void finding(Json& json, const Finding& f) {
  json.open('{').key("kind").string(name(f.what)).key("text").string(f.text);
  json.key("core").string(f.core).key("pipe").string(f.pipe < 0 ? "" : name(Pipe(f.pipe)));
  json.key("site").integer(f.site).key("count").integer(f.count);
  if (f.place.known) {
    json.key("memory").string(name(f.place.mem)).key("address").integer(f.place.address);
    json.key("argument").string(f.place.region == nullptr ? "" : f.place.region);
  }
  if (f.other.site != 0) {
    json.key("other").open('{').key("core").string(f.other.core);
    json.key("pipe").string(f.other.pipe < 0 ? "" : name(Pipe(f.other.pipe)));
    json.key("site").integer(f.other.site).close('}');
  }
  json.close('}');
}

template <size_t n>
void sparse(Json& json, const char* key, const uint64_t (&values)[n]) {
  json.key(key).open('{');
  for (size_t i = 0; i < n; ++i) {
    if (values[i] != 0) json.key(std::to_string(i)).integer(values[i]);
  }
  json.close('}');
}

void lane(Json& json, const CoreState& core, int pipe) {
  const Lane& lane = core.lanes[pipe];
  const Counters& c = lane.counters;
  json.open('{').key("core").string(core_name(core)).key("pipe").string(name(Pipe(pipe)));
  json.key("instructions").integer(c.instructions);
  sparse(json, "moved", c.moved);
  sparse(json, "transfers", c.transfers);
  sparse(json, "blocks", c.blocks);
  sparse(json, "elements", c.elements);
  sparse(json, "repeats", c.repeats);
  sparse(json, "products", c.products);
  sparse(json, "matmuls", c.matmuls);
  json.close('}');
}

void model(Json& json, Machine& machine, int index) {
  const int bins = index == 0 ? machine.options.bins : 0;
  const Model model = replay(*machine.trace, machine.options.rates[index], bins);
  json.open('{').key("cycles").number(model.cycles).key("hbm").integer(model.hbm);
  json.key("l2").integer(model.l2).key("lanes").open('[');
  for (size_t l = 0; l < model.lanes.size(); ++l) {
    const Occupation& lane = model.lanes[l];
    if (lane.nodes == 0) continue;
    json.open('{').key("core").string(core_name(machine.cores[l / PIPES]));
    json.key("pipe").string(name(Pipe(l % PIPES))).key("work").number(lane.work);
    json.key("busy").number(lane.busy).key("end").number(lane.end).key("bins").open('[');
    for (const float part : lane.bins) json.number(std::round(part * 1e3) / 1e3);
    json.close(']').close('}');
  }
  json.close(']').close('}');
}

}  // namespace

std::string write_report(Machine& machine) {
  Json json;
  const Report& report = machine.report;
  json.open('{').key("findings").open('[');
  for (const Finding& f : report.findings) finding(json, f);
  json.close(']').key("dropped").integer(report.dropped);
  json.key("instructions").integer(machine.instructions);
  json.key("sites").open('[');
  for (size_t s = 0; s < report.sites.size(); ++s) {
    const Sites::Site& site = report.sites[uint32_t(s)];
    json.open('{').key("api").string(site.api).key("file").string(site.file);
    json.key("function").string(site.function);
    json.key("line").integer(site.line).key("column").integer(site.column).close('}');
  }
  json.close(']').key("orders").open('[');
  for (const auto& [key, count] : report.orders) {
    const auto [kind, first, second] = key;
    json.open('{').key("kind").string(ORDERS[int(kind)]).key("first").integer(first);
    json.key("second").integer(second).key("count").integer(count).close('}');
  }
  json.close(']').key("lanes").open('[');
  for (const CoreState& core : machine.cores) {
    for (int pipe = 0; pipe < PIPES; ++pipe) {
      if (core.lanes[pipe].ticks > 0) lane(json, core, pipe);
    }
  }
  json.close(']').key("models").open('[');
  for (int i = 0; machine.trace && i < machine.options.models; ++i) model(json, machine, i);
  json.close(']').key("gm").open('[');
  for (const Region& region : machine.regions) {
    json.open('{').key("argument").string(region.name).key("bytes").integer(region.fresh);
    json.key("workspace").integer(Role(region.role) == Role::Workspace).close('}');
  }
  json.close(']').close('}');
  return json.text;
}

}  // namespace emu
