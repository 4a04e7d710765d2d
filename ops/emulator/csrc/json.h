// Just enough JSON to write a report.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace emu {

class Json {
 public:
  std::string text;

  Json& open(char bracket) {
    comma();
    text += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    text += bracket;
    first_ = false;
    return *this;
  }
  Json& key(std::string_view name) {
    string(name);
    text += ':';
    first_ = true;
    return *this;
  }
  Json& string(std::string_view value) {
    comma();
    text += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') {
        text += '\\';
        text += c;
      } else if (static_cast<unsigned char>(c) < 32) {
        char code[8];
        std::snprintf(code, sizeof code, "\\u%04x", c);
        text += code;
      } else {
        text += c;
      }
    }
    text += '"';
    return *this;
  }
  Json& number(double value) {
    comma();
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.10g", value);
    text += digits;
    return *this;
  }
  Json& integer(unsigned long long value) {
    comma();
    text += std::to_string(value);
    return *this;
  }

 private:
  bool first_ = true;
  void comma() {
    if (!first_) text += ',';
    first_ = false;
  }
};

}  // namespace emu
