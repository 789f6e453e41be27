//! `leasehold completions`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::{exit::Outcome, print};

/// Print completions for a shell
///
/// Bash, zsh and fish also complete live keys, cameras and runners. They ask the configured server for
/// less than a second, and suggest none if it does not answer.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold completions bash > /etc/bash_completion.d/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish")]
pub struct Arguments {
    /// Which shell
    shell: Shell,
}

/// Values of arguments, put around what is generated. A colon separates words in bash: what stands before
/// it is not repeated.
const BASH: &str = r#"
_leasehold_values() {
    _leasehold "$@"
    local line="${COMP_LINE:0:COMP_POINT}" word found words
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    word="${words[-1]}"
    mapfile -t found < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
    [[ ${#found[@]} -eq 0 ]] && return
    if [[ "$word" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        found=("${found[@]#"${word%"${word##*:}"}"}")
    fi
    COMPREPLY=("${found[@]}")
}
complete -F _leasehold_values -o nosort -o bashdefault -o default leasehold
"#;

const ZSH: &str = r#"
(( $+functions[_leasehold_values] )) ||
_leasehold_values() {
    local -a line=(${(z)LBUFFER}) found
    [[ "$LBUFFER" == *[[:space:]] ]] && line+=("")
    found=("${(@f)$("${line[1]}" __complete "${(@)line[2,-1]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _default; fi
}
"#;

/// Files are suggested only where there are no values.
const FISH: &str = r"
function __leasehold_values
    string match -q -- '-*' (commandline -ct); and return 1
    set -g __leasehold_found (leasehold __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
    test (count $__leasehold_found) -gt 0
end
complete -c leasehold -n __leasehold_values -f -a '$__leasehold_found'
";

/// What a flag of fish takes, if it is no file.
const FISH_FLAG: &str = r" -f -a '(__leasehold_values; and printf %s\n $__leasehold_found)'";

/// The script with values in it. Which arguments have some is known to the binary, so all of them ask.
fn with_values(shell: Shell, generated: &str) -> String {
    let mut script = String::with_capacity(2 * generated.len());
    for line in generated.lines() {
        match shell {
            Shell::Zsh => script.push_str(&zsh_line(line)),
            Shell::Fish if line.ends_with(" -r") => {
                script.push_str(line);
                script.push_str(FISH_FLAG);
            }
            _ => script.push_str(line),
        }
        script.push('\n');
    }
    match shell {
        Shell::Bash => script.push_str(BASH),
        Shell::Fish => script.push_str(FISH),
        Shell::Zsh => {
            let body = script.find("\n_leasehold() {").unwrap_or(script.len());
            script.insert_str(body, ZSH);
        }
        _ => {}
    }
    script
}

/// An argument in zsh, `…:MESSAGE:_default' \`. A colon in the message would end it.
fn zsh_line(line: &str) -> String {
    let Some(argument) = line.strip_suffix(":_default' \\") else {
        return line.to_owned();
    };
    let argument = match argument.rsplit_once("]:") {
        Some((flag, message)) => format!("{flag}]:{}", message.replace(':', "\\:")),
        None => argument.to_owned(),
    };
    format!("{argument}:_leasehold_values' \\")
}

/// Prints them.
pub fn run(arguments: &Arguments, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "leasehold", &mut script);
    let script = with_values(arguments.shell, &String::from_utf8_lossy(&script));
    print::bytes(script.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
