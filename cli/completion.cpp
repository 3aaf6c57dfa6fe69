// `serinus completion SHELL`: a completion script, made from the parser itself, so that it knows
// every subcommand and option that this build has.
#include <fmt/format.h>

#include <cctype>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <serinus/error.h>

#include "cli/commands.h"

namespace serinus::cli {
namespace {

struct Word {
  std::string name, help;
  std::vector<std::string> values;  // what the option takes, where the parser knows it
  bool takes_value = false;
};

struct Command {
  Word word;
  std::vector<Word> options;
  std::vector<std::string> arguments;  // what its positional takes, where known
};

// The choices that a check shows in the type name: "TEXT:{bash,fish}".
std::vector<std::string> choices(const CLI::Option& option) {
  std::vector<std::string> out;
  const std::string type = option.get_type_name();
  const auto open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return out;
  std::string word;
  for (const char c : type.substr(open + 1, close - open - 1) + ",") {
    if (c != ',') {
      word += c;
    } else if (!word.empty()) {
      out.push_back(word);
      word.clear();
    }
  }
  return out;
}

// The first line of a help text, without what would end a quoted string in one of the shells.
std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, text.find('\n')))
    if (std::string_view("'\"`$\\[]:").find(c) == std::string_view::npos) out += c;
  return out;
}

std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> out;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    Command command{{sub->get_name(), one_line(sub->get_description()), {}, false}, {}, {}};
    for (const CLI::Option* o : sub->get_options()) {
      if (o->get_positional()) {
        command.arguments = choices(*o);
      } else if (!o->get_lnames().empty()) {
        command.options.push_back({"--" + o->get_lnames().front(), one_line(o->get_description()),
                                   choices(*o), o->get_items_expected_max() > 0});
      }
    }
    if (command.word.name == "explain") {
      for (const ErrorEntry& e : error_reference()) {
        command.arguments.emplace_back(e.id);
        command.arguments.emplace_back(e.slug);
      }
    }
    out.push_back(std::move(command));
  }
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::string bash(const std::vector<Command>& commands) {
  std::string names, values, words;
  for (const Command& c : commands) {
    names += c.word.name + " ";
    std::vector<std::string> all = c.arguments;
    for (const Word& o : c.options) {
      all.push_back(o.name);
      if (!o.values.empty())
        values += fmt::format("        \"{} {}\") words='{}' ;;\n", c.word.name, o.name,
                              joined(o.values));
    }
    words += fmt::format("        {}) words='{}' ;;\n", c.word.name, joined(all));
  }
  return fmt::format(R"(# Completion of serinus for bash:  source <(serinus completion bash)
_serinus() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '{}--help --version' -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}} $before" in
{}    esac
    if [[ -z $words ]]; then
        case "${{COMP_WORDS[1]}}" in
{}        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _serinus serinus
)",
                     names, values, words);
}

std::string zsh(const std::vector<Command>& commands) {
  std::string names, cases;
  for (const Command& c : commands) {
    names += fmt::format("        '{}:{}'\n", c.word.name, c.word.help);
    std::string specs;
    for (const Word& o : c.options) {
      const char* value = o.takes_value ? ":value:" : "";
      const std::string what = !o.values.empty() ? fmt::format("({})", joined(o.values))
                               : o.takes_value   ? "_files"
                                                 : "";
      specs += fmt::format(" \\\n            '{}[{}]{}{}'", o.name, o.help, value, what);
    }
    const std::string rest =
        c.arguments.empty() ? "'*:file:_files'" : fmt::format("'*:word:({})'", joined(c.arguments));
    cases += fmt::format("        {}) _arguments {}{} ;;\n", c.word.name, rest, specs);
  }
  return fmt::format(R"(#compdef serinus
# Completion of serinus for zsh:  serinus completion zsh > "${{fpath[1]}}/_serinus"
_serinus() {{
    local -a commands
    commands=(
{}    )
    if ((CURRENT == 2)); then
        _describe 'command' commands
        return
    fi
    local command=$words[2]
    shift words
    ((CURRENT--))
    case $command in
{}    esac
}}
if [[ $funcstack[1] == _serinus ]]; then _serinus "$@"; else compdef _serinus serinus; fi
)",
                     names, cases);
}

std::string fish(const std::vector<Command>& commands) {
  std::string out =
      "# Completion of serinus for fish:  serinus completion fish | source\n"
      "complete -c serinus -n __fish_use_subcommand -l help -d 'Print the help'\n"
      "complete -c serinus -n __fish_use_subcommand -l version -d 'Print the version'\n";
  for (const Command& c : commands) {
    out += fmt::format("complete -c serinus -n __fish_use_subcommand -f -a {} -d '{}'\n",
                       c.word.name, c.word.help);
    const std::string here = fmt::format("'__fish_seen_subcommand_from {}'", c.word.name);
    if (!c.arguments.empty())
      out += fmt::format("complete -c serinus -n {} -f -a '{}'\n", here, joined(c.arguments));
    for (const Word& o : c.options) {
      out += fmt::format("complete -c serinus -n {} -l {} -d '{}'", here, o.name.substr(2), o.help);
      if (!o.values.empty()) out += fmt::format(" -x -a '{}'", joined(o.values));
      if (o.values.empty() && o.takes_value) out += " -r";
      out += '\n';
    }
  }
  return out;
}

}  // namespace

void add_completion(CLI::App& app, int& exit_code) {
  CLI::App* cmd = app.add_subcommand("completion", "Print a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  cmd->add_option("SHELL", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  cmd->callback([&app, &exit_code, shell] {
    const std::vector<Command> commands = commands_of(app);
    const std::string script = *shell == "bash"  ? bash(commands)
                               : *shell == "zsh" ? zsh(commands)
                                                 : fish(commands);
    std::fputs(script.c_str(), stdout);
    exit_code = kFine;
  });
}

}  // namespace serinus::cli
