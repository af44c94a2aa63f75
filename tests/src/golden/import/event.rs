//! The first line of a record, and what it announces.

use super::frame;
use super::scan::Raw;
use crate::golden::layout::Layouts;
use crate::golden::model::{
    Carrier, CmKind, CmParams, ConnParams, Dialect, Event, OneSided, Place, Posted, QpAttrs,
    Record, Section, Side,
};
use crate::golden::pairs::Pairs;
use crate::golden::payload::Payload;
use crate::golden::read::micros;

/// Converts one record.
pub(super) fn record(raw: &Raw<'_>, dialect: Dialect, layouts: &Layouts) -> Result<Record, String> {
    let mut words = raw.text.trim_start().splitn(2, "  ");
    let number = words
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or("record number")?;
    let rest = words
        .next()
        .and_then(|rest| rest.strip_prefix("t="))
        .ok_or("record time")?;
    let (time, text) = rest.split_once("  ").ok_or("record text")?;
    let event = match dialect {
        Dialect::Rdma => rdma(raw, text, layouts)?,
        Dialect::Tcp => tcp(raw, text, layouts)?,
    };
    Ok(Record {
        number,
        at: micros(time)?,
        event,
    })
}

fn side(name: &str) -> Result<Side, String> {
    match name {
        "client" | "C->S" => Ok(Side::Client),
        "server" | "S->C" => Ok(Side::Server),
        _ => Err(format!("neither client nor server: {name}")),
    }
}

fn narrow<T: TryFrom<u64>>(number: u64) -> Result<T, String> {
    number
        .try_into()
        .map_err(|_| format!("{number} is too large"))
}

fn rdma(raw: &Raw<'_>, text: &str, layouts: &Layouts) -> Result<Event, String> {
    let (who, text) = text.split_once(' ').ok_or("record without a subject")?;
    let side = side(who)?;
    let (what, rest) = text.split_once("  ").ok_or("record without details")?;
    let mut pairs = Pairs::new(rest);
    let event = match what {
        "CM_EVENT" => cm_event(raw, side, &mut pairs)?,
        "CREATE_QP" => Event::CreateQp {
            side,
            attrs: qp(&mut pairs)?,
        },
        "CM_CONNECT" if side == Side::Client => Event::Connect(conn(&mut pairs)?),
        "CM_ACCEPT" if side == Side::Server => Event::Accept(conn(&mut pairs)?),
        "CM_DISCONNECT" => Event::Disconnect {
            side,
            qp: pairs.number("qp")?,
        },
        "SEND" => return send(raw, side, rest, layouts),
        "RDMA_WRITE" => return write(raw, side, rest),
        "posts RDMA_READ" => {
            let rest = bracket(rest)?.0;
            Event::ReadPosted {
                side,
                work: one_sided(rest, "RDMA_READ", "rlen")?,
            }
        }
        _ if what.starts_with("posts the zero-SGE \"beacon\" SEND") => {
            let (posted, segments) = posted(bracket(rest)?.0, "SEND")?;
            if (posted.flags.as_str(), posted.chain, segments) != ("", 0, 0) {
                return Err("unusual beacon".to_owned());
            }
            Event::Beacon {
                side,
                qp: posted.qp,
            }
        }
        _ => return read_done(raw, side, what, rest),
    };
    if matches!(event, Event::ReadPosted { .. } | Event::Beacon { .. }) {
        return Ok(event);
    }
    pairs.done()?;
    Ok(event)
}

fn cm_event(raw: &Raw<'_>, side: Side, pairs: &mut Pairs<'_>) -> Result<Event, String> {
    let name = pairs.text("event")?;
    let name = name.strip_prefix("RDMA_CM_EVENT_").ok_or("event name")?;
    let kind = CmKind::NAMES
        .into_iter()
        .find(|row| row.1 == name)
        .ok_or("new CM event")?
        .0;
    let status = pairs.number("status")?;
    let params = match pairs.maybe("responder_resources") {
        None => None,
        Some(resources) => Some(CmParams {
            responder_resources: resources.parse().map_err(|_| "responder_resources")?,
            initiator_depth: pairs.number("initiator_depth")?,
            rnr_retry: pairs.number("rnr_retry")?,
            remote_qp: pairs.number("remote_qp")?,
            zeros: pairs.number("privlen")?,
        }),
    };
    let printed = params.map(|p| p.zeros).filter(|len| *len != 0);
    if printed != raw.zeros {
        return Err("private data is not as long as announced".to_owned());
    }
    Ok(Event::Cm {
        side,
        kind,
        status,
        params,
    })
}

fn qp(pairs: &mut Pairs<'_>) -> Result<QpAttrs, String> {
    pairs.constant("rc", "0")?;
    Ok(QpAttrs {
        qp: pairs.number("qp")?,
        kind: pairs.number("type")?,
        max_send_wr: pairs.number("max_send_wr")?,
        max_recv_wr: pairs.number("max_recv_wr")?,
        max_send_sge: pairs.number("max_send_sge")?,
        max_recv_sge: pairs.number("max_recv_sge")?,
        max_inline: pairs.number("max_inline")?,
        sq_sig_all: pairs.number("sq_sig_all")?,
    })
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
        private_len: pairs.number("privlen")?,
    })
}

/// What is between brackets, before them and behind them.
fn bracket(text: &str) -> Result<(&str, &str, &str), String> {
    let (before, rest) = text.split_once('[').ok_or("no [")?;
    let (inside, behind) = rest.split_once(']').ok_or("no ]")?;
    Ok((inside, before.trim(), behind.trim()))
}

fn posted_of(pairs: &mut Pairs<'_>, op: &str) -> Result<(Posted, u32), String> {
    pairs.constant("op", op)?;
    let posted = Posted {
        qp: pairs.number("qp")?,
        flags: pairs.text("flags")?.to_owned(),
        chain: pairs.number("chain")?,
    };
    Ok((posted, pairs.number("nsge")?))
}

fn posted(inside: &str, op: &str) -> Result<(Posted, u32), String> {
    let mut pairs = Pairs::new(inside);
    let posted = posted_of(&mut pairs, op)?;
    pairs.done()?;
    Ok(posted)
}

fn one_sided(inside: &str, op: &str, len: &str) -> Result<OneSided, String> {
    let mut pairs = Pairs::new(inside);
    let (posted, segments) = posted_of(&mut pairs, op)?;
    let work = OneSided {
        posted,
        segments,
        raddr: pairs.hex("raddr")?,
        rkey: narrow(pairs.hex("rkey")?)?,
        len: pairs.number(len)?,
    };
    pairs.done()?;
    Ok(work)
}

fn payload(raw: &Raw<'_>, len: usize) -> Result<Payload, String> {
    let [part] = &raw.parts[..] else {
        return Err("want one dump".to_owned());
    };
    let payload = part.dump.payload()?;
    if payload.len() != len || !part.fields.is_empty() {
        return Err(format!("{} bytes instead of {len}", payload.len()));
    }
    Ok(payload)
}

fn write(raw: &Raw<'_>, side: Side, rest: &str) -> Result<Event, String> {
    let (inside, before, _) = bracket(rest)?;
    let work = one_sided(&format!("{inside} {before}"), "RDMA_WRITE", "len")?;
    let payload = payload(raw, work.len as usize)?;
    Ok(Event::Write {
        side,
        work,
        payload,
    })
}

/// `RDMA_READ completed, N bytes fetched from peer  [qp=N]`.
fn read_done(raw: &Raw<'_>, side: Side, what: &str, rest: &str) -> Result<Event, String> {
    let len = what
        .strip_prefix("RDMA_READ completed, ")
        .and_then(|rest| rest.strip_suffix(" bytes fetched from peer"))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| format!("unknown record {what}"))?;
    let mut pairs = Pairs::new(bracket(rest)?.0);
    let qp = pairs.number("qp")?;
    pairs.done()?;
    Ok(Event::ReadDone {
        side,
        qp,
        payload: payload(raw, len)?,
    })
}

/// `KIND  len=N   [...]  (recv WRs posted so far by WHO: N)`.
fn send(raw: &Raw<'_>, side: Side, rest: &str, layouts: &Layouts) -> Result<Event, String> {
    let (inside, before, behind) = bracket(rest)?;
    let (kind, len) = before.split_once("  len=").ok_or("SEND without a length")?;
    let (posted, segments) = posted(inside, "SEND")?;
    let who = if side == Side::Client {
        "client"
    } else {
        "server"
    };
    let receives = behind
        .strip_prefix(&format!("(recv WRs posted so far by {who}: "))
        .and_then(|rest| rest.strip_suffix(')'))
        .and_then(|digits| digits.parse().ok())
        .ok_or("count of receives")?;
    let title = raw.parts.first().map_or("", |part| part.title);
    let gather = match title.strip_prefix("-- hex (gathered from SGEs of ") {
        None if title == "-- hex:" => vec![len.parse().map_err(|_| "length of a SEND")?],
        None => return Err(format!("title {title}")),
        Some(rest) => {
            let list = rest.strip_suffix(" bytes):").ok_or("gather list")?;
            let sizes = list
                .split('+')
                .map(|n| n.parse().map_err(|_| format!("size {n}")));
            sizes.collect::<Result<Vec<u32>, String>>()?
        }
    };
    if gather.len() != segments as usize || gather.iter().sum::<u32>().to_string() != len {
        return Err("segments do not add up".to_owned());
    }
    let carrier = Carrier::Send {
        posted,
        gather,
        receives,
    };
    let frame = frame::frame(raw, side, kind, carrier, layouts)?;
    if frame.bytes(Place::Main).len().to_string() != len {
        return Err("SEND is not as long as announced".to_owned());
    }
    Ok(Event::Frame(frame))
}

fn number_of(text: &str, before: &str) -> Result<u32, String> {
    let digits = text
        .strip_prefix(before)
        .ok_or_else(|| format!("{text}: want {before}"))?;
    digits.parse().map_err(|_| format!("number in {text}"))
}

fn tcp(raw: &Raw<'_>, text: &str, layouts: &Layouts) -> Result<Event, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["TCP", "SYN", conn, from, "->", to] => Ok(Event::Syn {
            conn: number_of(conn, "conn#")?,
            from: from.to_owned(),
            to: to.to_owned(),
        }),
        ["TCP", "FIN", conn, who] => Ok(Event::Fin {
            conn: number_of(conn, "conn#")?,
            side: side(who)?,
        }),
        ["TCP", "RST", conn, who] => Ok(Event::Rst {
            conn: number_of(conn, "conn#")?,
            side: side(who)?,
        }),
        [
            "C->S",
            conn,
            "CONNECT_MSG",
            "8",
            "bytes:",
            digits,
            kind,
            name,
            port,
            pad,
        ] => {
            let conn = number_of(conn, "conn#")?;
            let bytes = super::super::bytes::unhex(digits)?;
            let message = Section::cut(Place::Main, "connect", &bytes, layouts)?;
            let kind = number_of(kind, "sock_type=")?;
            let port = number_of(port, "second_port=")?;
            let known = [(1, "SINGLE_SOCK"), (2, "CTL_SOCK"), (3, "DATA_SOCK")];
            let again = format!("{kind:08x}{port:04x}0000");
            if again != digits || !known.contains(&(kind, name)) || pad != "pad=0x0000" {
                return Err("connect message differs from its annotation".to_owned());
            }
            Ok(Event::Hello { conn, message })
        }
        [who, conn, kind, ref sizes @ ..] => socket_frame(raw, who, conn, kind, sizes, layouts),
        _ => Err(format!("unknown record {text}")),
    }
}

fn socket_frame(
    raw: &Raw<'_>,
    who: &str,
    conn: &str,
    kind: &str,
    sizes: &[&str],
    layouts: &Layouts,
) -> Result<Event, String> {
    let title = raw.parts.first().map_or("", |part| part.title);
    let offset = number_of(title.trim_end_matches(':'), "-- hex, stream offset ")?;
    let (conn, data, want) = match *sizes {
        [main, "bytes"] => (
            number_of(conn, "conn#")?,
            None,
            [number_of(main, "ctl=")?, 0, 0],
        ),
        [main, "bytes", "+", bulk, "bulk", "bytes"] => {
            let want = [number_of(main, "ctl=")?, 0, number_of(bulk, "")?];
            (number_of(conn, "conn#")?, None, want)
        }
        [main, "bytes", "+", size, "bytes", "on", data] => {
            let conn = conn.strip_suffix("(ctl)").ok_or("control socket")?;
            let data = data.strip_suffix("(data)").ok_or("data socket")?;
            let want = [number_of(main, "ctl=")?, number_of(size, "")?, 0];
            (
                number_of(conn, "conn#")?,
                Some(number_of(data, "conn#")?),
                want,
            )
        }
        _ => return Err(format!("sizes {sizes:?}")),
    };
    let carrier = Carrier::Socket {
        conn,
        offset: u64::from(offset),
        data,
    };
    let frame = frame::frame(raw, side(who)?, kind, carrier, layouts)?;
    let seen = [Place::Main, Place::Data, Place::Bulk].map(|place| frame.bytes(place).len());
    if seen != want.map(|size| size as usize) {
        return Err(format!("frame has {seen:?} bytes and announces {want:?}"));
    }
    Ok(Event::Frame(frame))
}
