// Reads the script, which README.md describes, from the variable CANN_STAND_IN_SCRIPT.
#include "script.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace stand_in {
namespace {

// Every call takes this unless the script says otherwise: about what a small kernel takes on an NPU.
constexpr const char* kDefaultRule = "* fixed_ns=5000";

struct Rule {
  std::string name;
  int64_t more_elements_than = -1;
  int64_t more_indices_than = -1;
  double fixed_ns = 0;
  double element_ns = 0;
  double index_ns = 0;
  double host_ns = 0;
  bool synchronizes = false;

  bool matches(const Work& work) const {
    return (name == "*" || name == work.name) && work.elements > more_elements_than && work.indices > more_indices_than;
  }
};

struct Script {
  Machine machine;
  std::vector<Rule> rules;
};

// The text behind `key` in "key=value" or "key>value".
std::optional<std::string> after(const std::string& word, const std::string& key) {
  if (word.compare(0, key.size(), key) != 0) return std::nullopt;
  return word.substr(key.size());
}

void read_machine(std::istringstream& words, Machine& machine) {
  for (std::string word; words >> word;) {
    if (auto devices = after(word, "devices=")) {
      machine.devices = static_cast<uint32_t>(std::stoul(*devices));
    } else if (auto soc = after(word, "soc=")) {
      machine.soc = *soc;
    } else if (auto memory = after(word, "memory=")) {
      machine.memory = std::stoull(*memory);
    } else {
      throw std::invalid_argument(word);
    }
  }
}

Rule read_rule(const std::string& name, std::istringstream& words) {
  Rule rule;
  rule.name = name;
  for (std::string word; words >> word;) {
    if (auto elements = after(word, "elements>")) {
      rule.more_elements_than = std::stoll(*elements);
    } else if (auto indices = after(word, "indices>")) {
      rule.more_indices_than = std::stoll(*indices);
    } else if (auto fixed = after(word, "fixed_ns=")) {
      rule.fixed_ns = std::stod(*fixed);
    } else if (auto element = after(word, "element_ns=")) {
      rule.element_ns = std::stod(*element);
    } else if (auto index = after(word, "index_ns=")) {
      rule.index_ns = std::stod(*index);
    } else if (auto host = after(word, "host_ns=")) {
      rule.host_ns = std::stod(*host);
    } else if (word == "sync") {
      rule.synchronizes = true;
    } else {
      throw std::invalid_argument(word);
    }
  }
  return rule;
}

void read_statement(const std::string& statement, Script& script) {
  std::istringstream words(statement);
  std::string first;
  if (!(words >> first)) return;
  if (first == "machine") {
    read_machine(words, script.machine);
  } else {
    script.rules.push_back(read_rule(first, words));
  }
}

Script read_script() {
  Script script;
  read_statement(kDefaultRule, script);
  const char* text = std::getenv("CANN_STAND_IN_SCRIPT");
  std::istringstream statements(text == nullptr ? "" : text);
  for (std::string statement; std::getline(statements, statement, ';');) {
    try {
      read_statement(statement, script);
    } catch (const std::exception& error) {
      // Never half a script: a test that measures something else than it says is worse than one that dies.
      std::fprintf(stderr, "CANN_STAND_IN_SCRIPT: cannot read \"%s\": %s\n", statement.c_str(), error.what());
      std::abort();
    }
  }
  return script;
}

const Script& script() {
  static const Script read = read_script();
  return read;
}

std::chrono::nanoseconds nanoseconds(double count) {
  return std::chrono::nanoseconds(static_cast<int64_t>(count));
}

}  // namespace

const Machine& machine() { return script().machine; }

Price price(const Work& work) {
  const Rule* last = nullptr;
  for (const Rule& rule : script().rules) {
    if (rule.matches(work)) last = &rule;
  }
  const double device_ns = last->fixed_ns + last->element_ns * static_cast<double>(work.elements) +
                           last->index_ns * static_cast<double>(work.indices);
  return {nanoseconds(device_ns), nanoseconds(last->host_ns), last->synchronizes};
}

}  // namespace stand_in
