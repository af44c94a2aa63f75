//! The comments at the head and the foot of a recording.

use super::scan::Scanned;
use crate::golden::model::{Dialect, Event, Stream, Transcript};

/// Arguments with single blanks between them.
fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<&str>>().join(" ")
}

/// A transcript without records.
pub(super) fn header(scanned: &Scanned<'_>) -> Result<Transcript, String> {
    let first = scanned.comments.first().ok_or("no first line")?;
    let name = first
        .split('\'')
        .nth(1)
        .ok_or("no name in the first line")?;
    let dialect = match name.split_once('-').map(|pair| pair.0) {
        Some("rdma") => Dialect::Rdma,
        Some("tcp") => Dialect::Tcp,
        _ => return Err(format!("dialect of {name}")),
    };
    let comment = |start: &str| {
        scanned
            .comments
            .iter()
            .find_map(|line| line.strip_prefix(start))
    };
    let arguments = |who: &str| comment(&format!("{who}: {who} program on ")).map(tidy);
    // The programs of the one-sided recording take no arguments and print none.
    let fallback = comment("stock ")
        .filter(|rest| rest.contains("direct"))
        .map(|_| "direct");
    let arguments = |who: &str| {
        arguments(who)
            .or_else(|| fallback.map(str::to_owned))
            .ok_or_else(|| format!("no arguments of the {who}"))
    };
    let server = arguments("server")?;
    let (server, second) = match server.split_once("second: ") {
        None => (server, None),
        Some((first, second)) => (
            first.trim_end_matches(['(', ';', ' ']).to_owned(),
            Some(second.trim_end_matches(')').to_owned()),
        ),
    };
    let flushed = comment("work requests flushed at close (IBV_WC_WR_FLUSH_ERR): client ");
    let flushed = flushed.map(|rest| -> Result<(u32, u32), String> {
        let (client, server) = rest.split_once(", server ").ok_or("flushed")?;
        let number = |text: &str| text.parse().map_err(|_| format!("flushed {text}"));
        Ok((number(client)?, number(server)?))
    });
    Ok(Transcript {
        name: name.to_owned(),
        dialect,
        stream: Stream::None,
        server,
        second,
        client: arguments("client")?,
        flushed: flushed.transpose()?,
        records: Vec::new(),
        log: Vec::new(),
    })
}

/// Finds the stream mode from the connect messages.
pub(super) fn stream(transcript: &mut Transcript) -> Result<(), String> {
    let kinds = transcript
        .records
        .iter()
        .filter_map(|record| match &record.event {
            Event::Hello { message, .. } => message.bytes().get(3).copied(),
            _ => None,
        });
    let mut kinds: Vec<u8> = kinds.collect();
    kinds.sort_unstable();
    kinds.dedup();
    transcript.stream = match (transcript.dialect, &kinds[..]) {
        (Dialect::Rdma, []) => Stream::None,
        (Dialect::Tcp, [1]) => Stream::Single,
        (Dialect::Tcp, [2, 3]) => Stream::Dual,
        _ => return Err(format!("connect messages {kinds:?}")),
    };
    Ok(())
}
