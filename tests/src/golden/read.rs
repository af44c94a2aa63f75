//! Reading what `write` wrote.

use super::bytes::{unhex, unquote};
use super::layout::Layouts;
use super::model::{
    Body, Carrier, CmKind, CmParams, ConnParams, Event, Frame, Kind, LogLine, OneSided, Place,
    Posted, QpAttrs, Record, Section, Transcript,
};
use super::pairs::Pairs;
use super::payload::Payload;
use super::write::{DIALECTS, PLACES, PROGRAMS, RUNS, SIDES, STREAMS, TEXTS};

/// The value of a name in a table.
fn value<T: Clone>(table: &[(T, &str)], name: &str) -> Result<T, String> {
    let row = table.iter().find(|(_, other)| *other == name);
    row.map(|(value, _)| value.clone())
        .ok_or_else(|| format!("unknown name {name:?}"))
}

/// Seconds with six decimals as microseconds.
pub(super) fn micros(text: &str) -> Result<u64, String> {
    let (whole, part) = text.split_once('.').ok_or_else(|| format!("time {text}"))?;
    if part.len() != 6 {
        return Err(format!("time {text} has no six decimals"));
    }
    format!("{whole}{part}")
        .parse()
        .map_err(|_| format!("time {text}"))
}

impl Transcript {
    /// Reads the text of a vector file.
    ///
    /// # Errors
    ///
    /// The number of the first bad line and what is wrong with it.
    pub fn parse(text: &str, layouts: &Layouts) -> Result<Self, String> {
        let mut lines = text.lines().enumerate().peekable();
        let mut head: Vec<(&str, &str)> = Vec::new();
        for (_, line) in lines.by_ref().take_while(|(_, line)| !line.is_empty()) {
            head.push(line.split_once(' ').unwrap_or((line, "")));
        }
        let mut transcript = Self::head(head)?;
        while let Some((number, line)) = lines.next() {
            let at = |what| format!("line {}: {what}", number + 1);
            if line.is_empty() {
                continue;
            }
            if let Some(rest) = line.strip_prefix("log ") {
                transcript.log.push(log(rest).map_err(at)?);
                continue;
            }
            let mut record = record(line).map_err(at)?;
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("  ")) {
                let section = section(line, layouts).map_err(at)?;
                match &mut record.event {
                    Event::Frame(frame) => frame.sections.push(section),
                    Event::Hello { message, .. } => *message = section,
                    _ => return Err(at("a section without a frame".to_owned())),
                }
            }
            transcript.records.push(record);
        }
        Ok(transcript)
    }

    fn head(lines: Vec<(&str, &str)>) -> Result<Self, String> {
        let maybe = |key: &str| lines.iter().find(|line| line.0 == key).map(|line| line.1);
        let text = |key: &str| maybe(key).ok_or_else(|| format!("the head has no {key}"));
        let flushed = maybe("flushed").map(|pair| -> Result<(u32, u32), String> {
            let (client, server) = pair.split_once(' ').ok_or("flushed wants two numbers")?;
            let number = |text: &str| text.parse().map_err(|_| format!("flushed {text}"));
            Ok((number(client)?, number(server)?))
        });
        Ok(Self {
            name: text("transcript")?.to_owned(),
            dialect: value(&DIALECTS, text("dialect")?)?,
            stream: value(&STREAMS, text("stream")?)?,
            server: text("server")?.to_owned(),
            second: maybe("second").map(str::to_owned),
            client: text("client")?.to_owned(),
            flushed: flushed.transpose()?,
            records: Vec::new(),
            log: Vec::new(),
        })
    }
}

fn log(rest: &str) -> Result<LogLine, String> {
    let mut words = rest.splitn(3, ' ');
    let mut word = || words.next().ok_or_else(|| format!("short log line {rest}"));
    let program = value(&PROGRAMS, word()?)?;
    let at = micros(word()?)?;
    Ok(LogLine {
        program,
        at,
        text: word()?.to_owned(),
    })
}

fn record(line: &str) -> Result<Record, String> {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().ok_or_else(|| format!("short record {line}"));
    let number = word()?.parse().map_err(|_| "record without a number")?;
    let at = micros(word()?)?;
    let what = word()?;
    let rest = word()?;
    let event = match what {
        "syn" | "hello" => socket_event(what, rest)?,
        _ => sided_event(what, rest)?,
    };
    Ok(Record { number, at, event })
}

fn socket_event(what: &str, rest: &str) -> Result<Event, String> {
    let mut pairs = Pairs::new(rest);
    let conn = pairs.number("conn")?;
    let event = if what == "syn" {
        Event::Syn {
            conn,
            from: pairs.text("from")?.to_owned(),
            to: pairs.text("to")?.to_owned(),
        }
    } else {
        let body = Body::Fields(Vec::new());
        Event::Hello {
            conn,
            message: Section {
                place: Place::Main,
                name: String::new(),
                body,
            },
        }
    };
    pairs.done()?;
    Ok(event)
}

fn sided_event(what: &str, rest: &str) -> Result<Event, String> {
    let (side, rest) = rest
        .split_once(' ')
        .ok_or_else(|| format!("{what} without a side"))?;
    let side = value(&SIDES, side)?;
    let (name, words) = match what {
        "cm" | "frame" => rest
            .split_once(' ')
            .ok_or_else(|| format!("{what} without a kind"))?,
        _ => ("", rest),
    };
    let mut pairs = Pairs::new(words);
    let event = match what {
        "cm" => Event::Cm {
            side,
            kind: value(&CmKind::NAMES, name)?,
            status: pairs.number("status")?,
            params: cm_params(&mut pairs)?,
        },
        "qp" => Event::CreateQp {
            side,
            attrs: qp(&mut pairs)?,
        },
        "connect" => Event::Connect(conn(&mut pairs)?),
        "accept" => Event::Accept(conn(&mut pairs)?),
        "disconnect" => Event::Disconnect {
            side,
            qp: pairs.number("qp")?,
        },
        "beacon" => Event::Beacon {
            side,
            qp: pairs.number("qp")?,
        },
        "frame" => Event::Frame(Frame {
            side,
            kind: Kind::named(name).ok_or_else(|| format!("unknown frame {name}"))?,
            carrier: carrier(&mut pairs)?,
            sections: Vec::new(),
        }),
        "read" => Event::ReadPosted {
            side,
            work: one_sided(&mut pairs)?,
        },
        "read-done" => Event::ReadDone {
            side,
            qp: pairs.number("qp")?,
            payload: Payload::parse(pairs.text("data")?)?,
        },
        "write" => Event::Write {
            side,
            work: one_sided(&mut pairs)?,
            payload: Payload::parse(pairs.text("data")?)?,
        },
        "fin" => Event::Fin {
            side,
            conn: pairs.number("conn")?,
        },
        "rst" => Event::Rst {
            side,
            conn: pairs.number("conn")?,
        },
        _ => return Err(format!("unknown record {what}")),
    };
    pairs.done()?;
    Ok(event)
}

fn cm_params(pairs: &mut Pairs<'_>) -> Result<Option<CmParams>, String> {
    let Some(resources) = pairs.maybe("responder_resources") else {
        return Ok(None);
    };
    Ok(Some(CmParams {
        responder_resources: resources
            .parse()
            .map_err(|_| format!("number {resources}"))?,
        initiator_depth: pairs.number("initiator_depth")?,
        rnr_retry: pairs.number("rnr_retry")?,
        remote_qp: pairs.number("remote_qp")?,
        zeros: pairs.number("zeros")?,
    }))
}

fn qp(pairs: &mut Pairs<'_>) -> Result<QpAttrs, String> {
    Ok(QpAttrs {
        qp: pairs.number("qp")?,
        kind: pairs.number("type")?,
        max_send_wr: pairs.number("send_wr")?,
        max_recv_wr: pairs.number("recv_wr")?,
        max_send_sge: pairs.number("send_sge")?,
        max_recv_sge: pairs.number("recv_sge")?,
        max_inline: pairs.number("inline")?,
        sq_sig_all: pairs.number("sig_all")?,
    })
}

fn narrow<T: TryFrom<u64>>(number: u64) -> Result<T, String> {
    number
        .try_into()
        .map_err(|_| format!("{number} is too large"))
}

fn conn(pairs: &mut Pairs<'_>) -> Result<ConnParams, String> {
    Ok(ConnParams {
        qp: pairs.number("qp")?,
        ps: narrow(pairs.hex("ps")?)?,
        responder_resources: pairs.number("responder_resources")?,
        initiator_depth: pairs.number("initiator_depth")?,
        flow_control: pairs.number("flow_control")?,
        retry: pairs.number("retry")?,
        rnr_retry: pairs.number("rnr_retry")?,
        srq: pairs.number("srq")?,
        private_len: pairs.number("private_len")?,
    })
}

fn posted(pairs: &mut Pairs<'_>) -> Result<Posted, String> {
    Ok(Posted {
        qp: pairs.number("qp")?,
        flags: pairs.text("flags")?.to_owned(),
        chain: pairs.number("chain")?,
    })
}

fn one_sided(pairs: &mut Pairs<'_>) -> Result<OneSided, String> {
    Ok(OneSided {
        posted: posted(pairs)?,
        segments: pairs.number("segments")?,
        raddr: pairs.hex("raddr")?,
        rkey: narrow(pairs.hex("rkey")?)?,
        len: pairs.number("len")?,
    })
}

fn carrier(pairs: &mut Pairs<'_>) -> Result<Carrier, String> {
    if let Some(gather) = pairs.maybe("gather") {
        let gather = gather
            .split('+')
            .map(|n| n.parse().map_err(|_| format!("gather {n}")));
        return Ok(Carrier::Send {
            gather: gather.collect::<Result<Vec<u32>, String>>()?,
            posted: posted(pairs)?,
            receives: pairs.number("receives")?,
        });
    }
    let data = pairs
        .maybe("data")
        .map(|n| n.parse().map_err(|_| format!("data {n}")));
    Ok(Carrier::Socket {
        conn: pairs.number("conn")?,
        offset: pairs.number("offset")?,
        data: data.transpose()?,
    })
}

/// One section from its line.
pub(super) fn section(line: &str, layouts: &Layouts) -> Result<Section, String> {
    let line = line.trim_start();
    let (marked, rest) = line
        .split_once(' ')
        .ok_or_else(|| format!("short section {line}"))?;
    let name = marked.trim_start_matches(['~', '+']);
    let place = value(&PLACES, &marked[..marked.len() - name.len()])?;
    if layouts.get(name).is_some() {
        let fields = rest
            .split(' ')
            .map(unhex)
            .collect::<Result<Vec<Vec<u8>>, String>>()?;
        let section = Section::cut(place, name, &fields.concat(), layouts)?;
        let widths = |body: &Body| match body {
            Body::Fields(all) => all.iter().map(|f| f.value.len()).collect::<Vec<usize>>(),
            Body::Bytes(_) => Vec::new(),
        };
        if widths(&section.body) != fields.iter().map(Vec::len).collect::<Vec<usize>>() {
            return Err(format!("widths in {line} are not those of its layout"));
        }
        return Ok(section);
    }
    let payload = if TEXTS.contains(&name) {
        Payload::Raw(unquote(rest)?)
    } else if RUNS.contains(&name) {
        Payload::parse(rest)?
    } else {
        return Err(format!("unknown section {name}"));
    };
    Ok(Section {
        place,
        name: name.to_owned(),
        body: Body::Bytes(payload),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUTS: &str = "tlv magic:4 type:4 len:8\nconnect kind:4 port:2 pad:2\n";

    const TEXT: &str = "\
transcript small
dialect tcp
stream single
server tcp://a:1
client tcp://a:1 disc

0 0.000000 syn conn=0 from=a:7 to=a:1
1 0.000001 hello conn=0
  connect 00000001 0000 0000
2 0.000002 frame client MSG_REQ conn=0 offset=8
  tlv 58494f50 00000012 0000000000000005
  ulp_hdr \"a\\x00b\"
  +data 0102
3 1.000000 fin client conn=0

log second 2.000000 event session-teardown session-closed
";

    fn read(text: &str) -> Result<Transcript, String> {
        Transcript::parse(text, &Layouts::parse(LAYOUTS).unwrap())
    }

    #[test]
    fn what_is_written_is_read() {
        let transcript = read(TEXT).unwrap();
        assert_eq!(transcript.text(), TEXT);
        let (_, frame) = transcript.frames().next().unwrap();
        assert_eq!(frame.bytes(Place::Bulk), [1, 2]);
        assert_eq!(frame.contiguous().len(), 21);
        assert_eq!(transcript.records[3].at, 1_000_000);
    }

    #[test]
    fn damage_is_refused() {
        let changes = [
            ("dialect tcp\n", ""),
            ("dialect tcp", "dialect udp"),
            ("stream single", "stream triple"),
            ("client tcp", "client2 tcp"),
            ("0.000000", "0.00000"),
            ("syn conn", "sync conn"),
            ("from=a:7", "from=a:7 via=b"),
            ("frame client", "frame clients"),
            ("MSG_REQ", "MSG_REW"),
            ("offset=8", "offset=x"),
            ("00000012 ", "000012 "),
            ("00000001 0000 0000", "0000000100 00 0000"),
            ("0000000000000005", "0000000000000005 00"),
            ("\"a\\x00b\"", "a"),
            ("+data", "-data"),
            ("+data 0102", "+data 012"),
            (
                "3 1.000000 fin",
                "  tlv 58494f50 00000012 0000000000000005\nx 1.000000 fin",
            ),
            ("fin client", "fin third"),
            ("log second", "log fourth"),
        ];
        for (from, to) in changes {
            assert_eq!(TEXT.matches(from).count(), 1, "{from:?} is not there once");
            assert!(read(&TEXT.replace(from, to)).is_err(), "{from:?} -> {to:?}");
        }
        let stray = TEXT.replace("1 0.000001 hello conn=0\n", "");
        assert!(read(&stray).unwrap_err().contains("without a frame"));
    }
}
