//! `leasehold completions`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::{exit::Outcome, print};

/// Print the completions of a shell
///
/// Bash, zsh and fish also complete live keys, cameras and runners: they ask the configured server, for
/// less than a second, and suggest nothing when it does not answer.
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

/// Live values, put around what is generated. A colon separates words in bash: what stands before it is
/// not repeated.
const BASH: &str = r#"
_leasehold_live() {
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
complete -F _leasehold_live -o nosort -o bashdefault -o default leasehold
"#;

const ZSH: &str = r#"
(( $+functions[_leasehold_live] )) ||
_leasehold_live() {
    local -a line=(${(z)LBUFFER}) found
    [[ "$LBUFFER" == *[[:space:]] ]] && line+=("")
    found=("${(@f)$("${line[1]}" __complete "${(@)line[2,-1]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _default; fi
}
"#;

const FISH: &str = r#"
complete -c leasehold -f -n 'not string match -q -- "-*" (commandline -ct)' -a '(leasehold __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
"#;

/// Prints them.
pub fn run(arguments: &Arguments, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "leasehold", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match arguments.shell {
        Shell::Bash => script.push_str(BASH),
        Shell::Fish => script.push_str(FISH),
        Shell::Zsh => {
            // Every positional: which of them have live values is known to the binary.
            let lines = script.lines().map(|line| {
                let positional = ["':", "'*:"].iter().any(|start| line.starts_with(start));
                match line.strip_suffix(":_default' \\").filter(|_| positional) {
                    Some(before) => format!("{before}:_leasehold_live' \\\n"),
                    None => format!("{line}\n"),
                }
            });
            script = lines.collect();
            let body = script.find("\n_leasehold() {").unwrap_or(script.len());
            script.insert_str(body, ZSH);
        }
        _ => {}
    }
    print::bytes(script.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
