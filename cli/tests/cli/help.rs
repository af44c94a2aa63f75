//! Whoever asks for help gets an answer with an example.

use super::{stderr, stdout, xio};

#[test]
fn every_command_explains_itself() {
    for command in [
        "completions",
        "decode",
        "demo",
        "devices",
        "man",
        "ping",
        "replay",
        "serve",
        "sim",
        "states",
    ] {
        let output = xio(&[command, "--help"]);
        assert!(output.status.success());
        let text = stdout(&output);
        assert!(
            text.contains(&format!("Examples:\n  xio {command}")),
            "{text}"
        );
    }
    assert!(stdout(&xio(&["--help"])).contains("xio demo"));
    assert!(stdout(&xio(&["--version"])).starts_with("xio "));
}

#[test]
fn shells_and_manuals_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = xio(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        let text = stdout(&output);
        assert!(
            text.contains("decode") && text.contains("follow"),
            "{shell}"
        );
    }
    let page = stdout(&xio(&["man"]));
    assert!(
        page.contains(".TH xio 1") && page.contains("xio\\-decode(1)"),
        "{page}"
    );
    let page = stdout(&xio(&["man", "decode"]));
    assert!(page.contains(".TH xio-decode 1"), "{page}");
    assert!(
        page.contains("\\-\\-follow") && page.contains("\\-\\-verbose"),
        "{page}"
    );
    let output = xio(&["man", "nothing"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no command nothing"));
}

#[test]
fn nothing_and_nonsense_lead_to_help() {
    for args in [&[][..], &["dmeo"][..]] {
        let output = xio(args);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("--help"), "{}", stderr(&output));
    }
}

#[test]
#[cfg(unix)]
fn reader_who_leaves_is_no_error() {
    let program = env!("CARGO_BIN_EXE_xio");
    let script = format!(
        "{program} states | head -1; {program} sim --seed 1 --faults none --trace | head -1"
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output();
    let output = output.expect("a shell");
    assert_eq!(stdout(&output), "machine nexus\nseed 1\n");
    assert_eq!(stderr(&output), "");
}
