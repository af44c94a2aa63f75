//! What the recorded programs printed, cut down to what happened.

use crate::golden::model::{LogLine, Program};

/// Converts a line; lines of the library itself and of start-up are left out.
pub(super) fn line(program: Program, text: &str) -> Result<Option<LogLine>, String> {
    let initial = if program == Program::Client {
        "[C "
    } else {
        "[S "
    };
    let Some((clock, text)) = text
        .strip_prefix(initial)
        .and_then(|rest| rest.split_once("] "))
    else {
        return Ok(None);
    };
    let at = clock
        .trim()
        .split_once('.')
        .filter(|(_, part)| part.len() == 4);
    let at = at.and_then(|(whole, part)| format!("{whole}{part}00").parse().ok());
    let at = at.ok_or_else(|| format!("time {clock}"))?;
    Ok(Some(LogLine {
        program,
        at,
        text: short(text)?,
    }))
}

/// `a=1 b=2` words of a line except those that say nothing.
fn facts(text: &str) -> String {
    let dull = ["sn=", "type=", "flags=", "nents=", "hdr0=", "dir="];
    let words = text
        .split_whitespace()
        .take_while(|word| !word.starts_with("hdr0="));
    let words = words.filter(|word| !dull.iter().any(|start| word.starts_with(start)));
    words.collect::<Vec<&str>>().join(" ")
}

/// A sentence as one word.
fn word(text: &str) -> String {
    text.trim().to_lowercase().replace(' ', "-")
}

/// The text between the first pair of quotes.
fn quoted(text: &str) -> Result<&str, String> {
    text.split('\'')
        .nth(1)
        .ok_or_else(|| format!("nothing quoted in {text}"))
}

fn short(text: &str) -> Result<String, String> {
    let starts = [
        ("--- step ", "step"),
        ("REQ ", "request"),
        ("ONEWAY ", "one-way"),
        ("RSP ", "response"),
        ("sent response ", "sent"),
        ("on_msg_delivered ", "delivered"),
        ("xio_cancel_request ", "cancel"),
    ];
    let same = [
        ("on_msg_send_complete", "send-complete"),
        ("on_ow_msg_send_complete", "one-way-complete"),
        ("late response", "late-response"),
        ("holding request", "hold"),
        ("server: xio_disconnect", "disconnect"),
        ("closed=1", "closed"),
        ("exit", "exit"),
    ];
    if let Some((_, name)) = same.iter().find(|(line, _)| *line == text) {
        return Ok((*name).to_owned());
    }
    if let Some((start, name)) = starts.iter().find(|(start, _)| text.starts_with(start)) {
        return Ok(format!("{name} {}", facts(&text[start.len()..])));
    }
    if let Some(rest) = text.strip_prefix("session event: ") {
        let (what, reason) = rest
            .split_once(" reason: ")
            .ok_or_else(|| format!("event {rest}"))?;
        let reason = reason.split(" priv=").next().unwrap_or(reason);
        return Ok(format!("event {} {}", word(what), word(reason)));
    }
    if let Some(rest) = text.strip_prefix("on_msg_error ") {
        let (what, _) = rest
            .split_once(" dir=")
            .ok_or_else(|| format!("error {rest}"))?;
        return Ok(format!("failed {}", word(what)));
    }
    if let Some(rest) = text.strip_prefix("session established priv=") {
        return Ok(format!("established \"{}\"", quoted(rest)?));
    }
    if let Some(rest) = text.strip_prefix("new session uri=") {
        let private = rest
            .split_once(" priv=")
            .ok_or_else(|| format!("session {rest}"))?
            .1;
        return Ok(format!(
            "session \"{}\" \"{}\"",
            quoted(rest)?,
            quoted(private)?
        ));
    }
    if text.starts_with("listening ") {
        return Ok("listening".to_owned());
    }
    Err(format!("unknown output {text}"))
}
