//! Whoever asks for help gets an answer with an example.

use super::{json, stderr, stdout, xio};

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

#[test]
fn what_cannot_be_done_is_an_object_for_programs_too() {
    let cannot: [&[&str]; 4] = [
        &["serve", "tcp://192.0.2.7:1/", "--json"],
        &["ping", "tcp://host.invalid:1/", "--json"],
        &["decode", "no-such-file.pcap", "--json"],
        &["replay", "no-such-file.rec", "--json"],
    ];
    for args in cannot {
        let output = xio(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let object = json(&output);
        let error = object["error"].as_str().expect("why");
        assert!(
            !error.is_empty() && stderr(&output).contains(error),
            "{args:?}: {error}"
        );
    }
}

#[test]
fn many_seeds_are_not_recorded_as_one() {
    let output = xio(&["sim", "--seeds", "5", "--record", "never-written.rec"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--record"), "{}", stderr(&output));
}
