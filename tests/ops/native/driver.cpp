// Runs kernels of another processor under an emulator: reads calls from a file, makes them, and
// writes what they return. Linked with the sources of one operator; -DENTRIES names its functions.
//
// Input, all numbers int64: threads, number of calls; per call: index of the function, number of
// arguments; per argument: kind and value. Kind 0: a number. 1: a buffer of `value` bytes, which
// follow. 2: a buffer of `value` bytes to be written. 3: null. Output per call: the number that the
// function returned, then the buffers of kind 2.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

using N = int64_t;
using Entry = int (*)(N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N, N);
#define ENTRY(name) extern "C" int name();
ENTRIES
#undef ENTRY
#define ENTRY(name) reinterpret_cast<Entry>(name),
static const Entry entries[] = {ENTRIES};

extern "C" void g5_set_threads(int count);

static FILE* input;

static void read(void* to, size_t bytes) {
  if (std::fread(to, 1, bytes, input) != bytes) {
    std::fprintf(stderr, "the input ends too early\n");
    std::exit(2);
  }
}

static int64_t number() {
  int64_t x;
  read(&x, sizeof x);
  return x;
}

static char* buffer(size_t bytes) {
  char* memory = static_cast<char*>(std::aligned_alloc(64, bytes / 64 * 64 + 64));
  // What a function forgets to write shows.
  for (size_t i = 0; i < bytes; i++) memory[i] = char(0xa5);
  return memory;
}

// The arguments are whole numbers and pointers of 64 bits, which are passed alike whatever their
// types are; more than the function takes do no harm.
static int64_t call(Entry entry, const std::vector<int64_t>& given) {
  int64_t a[24] = {};
  for (size_t i = 0; i < given.size(); i++) a[i] = given[i];
  return entry(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
               a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23]);
}

static void run(FILE* output) {
  const int64_t index = number();
  std::vector<int64_t> arguments;
  arguments.resize(size_t(number()));
  std::vector<std::pair<char*, size_t>> written;
  std::vector<char*> owned;
  for (int64_t& argument : arguments) {
    const int64_t kind = number(), value = number();
    argument = kind == 0 ? value : 0;
    if (kind != 1 && kind != 2) continue;
    char* memory = buffer(size_t(value));
    owned.push_back(memory);
    if (kind == 1) read(memory, size_t(value));
    if (kind == 2) written.emplace_back(memory, size_t(value));
    argument = int64_t(memory);
  }
  const int64_t code = call(entries[index], arguments);
  std::fwrite(&code, sizeof code, 1, output);
  for (const auto& [memory, bytes] : written) std::fwrite(memory, 1, bytes, output);
  for (char* memory : owned) std::free(memory);
}

int main(int count, char** words) {
  if (count != 3) return 2;
  input = std::fopen(words[1], "rb");
  FILE* output = std::fopen(words[2], "wb");
  if (input == nullptr || output == nullptr) return 2;
  g5_set_threads(int(number()));
  for (int64_t calls = number(); calls > 0; calls--) run(output);
  return std::fclose(output) == 0 ? 0 : 2;
}
