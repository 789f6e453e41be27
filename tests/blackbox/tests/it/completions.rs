//! Completions in real shells, against a real server.

use std::os::unix::fs::symlink;

use leasehold_testkit::{Binary, Program};
use serde_json::json;

use crate::cli_support::{SOON, Server, plain};

/// What zsh runs before its first prompt: whatever completion adds is also printed, and `^X^P` asks for it.
const ZSHRC: &str = r#"
PROMPT= RPROMPT=
fpath=($ZDOTDIR $fpath)
autoload -Uz compinit && compinit -u -D
compadd() {
    local -a found
    # Calls that only look at matches add none.
    if [[ " ${argv[1,(i)--]} " != *" -"[OAD]" "* ]]; then
        builtin compadd -O found "$@"
        print -rl -- "" "found:"${^found}
    fi
    builtin compadd "$@"
}
ask() { zle complete-word; print -r -- ":done:"; BUFFER= }
zle -N ask
bindkey '^X^P' ask
print -r -- ":ready:"
"#;

/// Types a line into such a zsh, on a terminal of its own, and prints what came.
const ASK_ZSH: &str = r#"
zmodload zsh/zpty
zpty inner zsh -d -i
zpty -r inner text '*:ready:*'
zpty -w -n inner "$1"$'\C-x\C-p'
zpty -r inner text '*:done:*'
print -r -- "$text"
zpty -d inner
"#;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    /// Puts the script where the shell finds it.
    async fn install(self, server: &Server) {
        let mut printed = plain(&["completions", self.name()]).spawn();
        assert!(printed.wait(SOON).await.success(), "{}", printed.tail());
        let script = printed.lines().join("\n");
        let write = |name: &str, text: &str| server.dir.write(name, text).expect("written");
        write("_leasehold", &script);
        if self == Self::Zsh {
            write(".zshrc", ZSHRC);
        }
    }

    /// What the shell would suggest for this line, in order.
    async fn suggests(self, server: &Server, line: &str) -> Vec<String> {
        let script = server.dir.join("_leasehold").display().to_string();
        let program = match self {
            Self::Bash => Program::new("bash").args(["--norc", "-c", &ask_bash(&script, line)]),
            Self::Zsh => Program::new("zsh").args(["-f", "-c", ASK_ZSH, "ask", line]),
            Self::Fish => {
                let ask = format!("source '{script}'; complete -C '{line}'");
                Program::new("fish").args(["--no-config", "-c", &ask])
            }
        };
        // A folder without a file, so that none is suggested.
        let empty = server.dir.join("empty");
        std::fs::create_dir_all(&empty).expect("a folder of our own");
        let path = std::env::var("PATH").expect("a search path");
        let mut shell = program
            .current_dir(&empty)
            .env("PATH", format!("{}:{path}", server.dir.path().display()))
            .env("HOME", &empty)
            .env("ZDOTDIR", server.dir.path())
            .env("TERM", "xterm")
            .env("LEASEHOLD_DATA_DIR", server.data())
            .env("LEASEHOLD_URL", format!("http://{}", server.address))
            .spawn();
        assert!(shell.wait(SOON).await.success(), "{}", shell.tail());
        let lines = shell.lines();
        let mut words: Vec<String> = match self {
            Self::Bash => lines.into_iter().filter(|it| !it.is_empty()).collect(),
            Self::Zsh => lines
                .iter()
                .filter_map(|it| it.trim_end().strip_prefix("found:"))
                .map(str::to_owned)
                .collect(),
            // A description stands behind the word.
            Self::Fish => lines
                .iter()
                .filter_map(|it| it.split('\t').next())
                .map(str::to_owned)
                .collect(),
        };
        words.sort();
        words
    }
}

/// Asks as `complete -F` does: bash splits words at colons.
fn ask_bash(script: &str, line: &str) -> String {
    let words: Vec<String> = line
        .split(' ')
        .flat_map(|word| word.split(':').flat_map(|part| [":", part]).skip(1))
        .map(|word| format!("'{word}'"))
        .collect();
    format!(
        "source '{script}'; COMP_WORDS=({}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMP_LINE='{line}'; \
         COMP_POINT=${{#COMP_LINE}}; _leasehold_values leasehold \"${{COMP_WORDS[-1]}}\" x; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" ")
    )
}

async fn completes(shell: Shell) {
    let mut server = Server::start().await;
    symlink(Binary::leasehold_path(), server.dir.join("leasehold")).expect("a folder of our own");
    shell.install(&server).await;
    for key in ["job:nightly", "job:hourly", "other:x"] {
        let ran = server.run(&["lease", "acquire", key, "--ttl", "1h"]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    }
    let token = std::fs::read_to_string(server.data().join("admin.token")).expect("made at start");
    let http = reqwest::Client::new();
    for (path, body) in [
        (
            "tenants/t/sites/s/cameras",
            json!({"camera_uuid": "cam-7", "rtsp_url": "rtsp://h/1"}),
        ),
        (
            "runners/register",
            json!({"runner_id": "edge-1", "tenant_id": "t", "site_id": "s", "deployment_group": "g",
                "deployment_version": "1", "host": "h", "port": 1}),
        ),
    ] {
        let url = format!("http://{}/api/v1/{path}", server.address);
        let request = http.post(url).bearer_auth(token.trim()).json(&body);
        let answer = request.send().await.expect("answered");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
    }
    for (line, expected) in [
        // Live ones.
        (
            "lease get ",
            &["job:hourly", "job:nightly", "other:x", "runner:t/edge-1"][..],
        ),
        ("lease get job:n", &["job:nightly"]),
        ("camera rm ca", &["cam-7"]),
        ("runner drain ", &["edge-1"]),
        // Verbs and flags.
        ("lease ren", &["renew"]),
        ("lease acquire --tt", &["--ttl"]),
        // Values of flags and arguments.
        ("lease ls --status re", &["released", "revoked"]),
        ("lease acquire job:a --on-outage h", &["hold:30s"]),
        (
            "credential create --scope leases:",
            &["leases:admin", "leases:read", "leases:write"],
        ),
        ("completions z", &["zsh"]),
    ] {
        // What stands before a colon is a word of its own in bash, and there already.
        let typed = line.rsplit(' ').next().unwrap_or_default();
        let before = typed.rfind(':').map_or("", |colon| &typed[..=colon]);
        let skip = if shell == Shell::Bash { before } else { "" };
        let expected: Vec<&str> = expected
            .iter()
            .map(|it| it.strip_prefix(skip).expect("it begins as what was typed"))
            .collect();
        // On a busy machine a server's answer may come too late for a suggestion.
        let mut found = Vec::new();
        for _ in 0..10 {
            found = shell.suggests(&server, &format!("leasehold {line}")).await;
            if found == expected {
                break;
            }
        }
        assert_eq!(found, expected, "{shell:?}: {line}");
    }
    // Without a server there is no error and no delay, only nothing to suggest.
    server.child.kill9();
    let found = shell.suggests(&server, "leasehold camera rm ca").await;
    assert!(found.is_empty(), "{shell:?}: {found:?}");
}

#[tokio::test]
async fn bash_completes_verbs_flags_values_and_live_keys() {
    completes(Shell::Bash).await;
}

#[tokio::test]
async fn zsh_completes_verbs_flags_values_and_live_keys() {
    completes(Shell::Zsh).await;
}

#[tokio::test]
async fn fish_completes_verbs_flags_values_and_live_keys() {
    completes(Shell::Fish).await;
}
