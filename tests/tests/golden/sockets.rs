//! The byte streams of the recordings are cut where the recorded peers began their frames.

use std::collections::BTreeMap;

use xio_proto::wire::{ConnectMessage, Framing, StreamPlan, control_len, stream_plan};
use xio_tests::golden::{Carrier, Event, Place, Side, Stream, load_all, named};

use super::codec::BOUNDS;
use super::framing;

/// What is left of the bytes that each side sent on each socket.
type Streams = BTreeMap<(u32, Side), Vec<u8>>;

fn take(streams: &mut Streams, socket: (u32, Side), len: usize) -> Vec<u8> {
    let stream = streams.get_mut(&socket).expect("a socket with bytes");
    assert!(
        stream.len() >= len,
        "{socket:?} has {} of {len} bytes",
        stream.len()
    );
    stream.drain(..len).collect()
}

#[test]
fn streams_are_cut_into_the_recorded_frames() {
    let sockets = load_all()
        .unwrap()
        .into_iter()
        .filter(|t| t.stream != Stream::None);
    let mut frames = 0;
    for transcript in sockets {
        let framing = framing(&transcript);
        let mut streams = Streams::new();
        for record in &transcript.records {
            match &record.event {
                Event::Hello { conn, message } => {
                    streams
                        .entry((*conn, Side::Client))
                        .or_default()
                        .extend(message.bytes());
                }
                Event::Frame(frame) => {
                    let Carrier::Socket { conn, data, .. } = frame.carrier else {
                        panic!("no socket")
                    };
                    let main = streams.entry((conn, frame.side)).or_default();
                    main.extend(frame.bytes(Place::Main));
                    main.extend(frame.bytes(Place::Bulk));
                    let data = data.map(|data| streams.entry((data, frame.side)).or_default());
                    let bytes = frame.bytes(Place::Data);
                    match data {
                        Some(data) => data.extend(bytes),
                        None => assert!(bytes.is_empty()),
                    }
                }
                _ => {}
            }
        }
        for record in &transcript.records {
            let what = format!("{} {}", transcript.name, record.number);
            match &record.event {
                Event::Hello { conn, message } => {
                    let bytes = take(&mut streams, (*conn, Side::Client), ConnectMessage::LEN);
                    let seen = ConnectMessage::parse(bytes[..].try_into().unwrap()).unwrap();
                    let fields = named(std::slice::from_ref(message));
                    let number = |i: usize| fields[i].field.unwrap().number();
                    assert_eq!(u64::from(seen.sock as u32), number(0), "{what}");
                    assert_eq!(u64::from(seen.second_port), number(1), "{what}");
                    let mut again = [0xEE; ConnectMessage::LEN];
                    assert_eq!(seen.encode(&mut again), ConnectMessage::LEN);
                    assert_eq!(again[..], bytes, "{what}");
                }
                Event::Frame(frame) => {
                    frames += 1;
                    cut(&what, frame, framing, &mut streams);
                }
                _ => {}
            }
        }
        assert!(
            streams.values().all(Vec::is_empty),
            "{}: bytes left",
            transcript.name
        );
    }
    assert_eq!(frames, 233, "frames on sockets");
}

/// Cuts the next frame and its payload from the streams and compares both with the record.
fn cut(what: &str, frame: &xio_tests::golden::Frame, framing: Framing, streams: &mut Streams) {
    let Carrier::Socket { conn, data, .. } = frame.carrier else {
        panic!("no socket")
    };
    let main = (conn, frame.side);
    let start = take(streams, main, 16);
    let (kind, len) = control_len(start[..].try_into().unwrap(), framing, BOUNDS.frame_max)
        .unwrap_or_else(|violation| panic!("{what}: {violation}"));
    assert_eq!(kind.word(), frame.kind.wire(), "{what}");
    let control = [start, take(streams, main, len - 16)].concat();
    assert_eq!(control, frame.bytes(Place::Main), "{what}");
    let StreamPlan {
        data_inline,
        payload,
    } = stream_plan(&control, framing, kind, &BOUNDS)
        .unwrap_or_else(|violation| panic!("{what}: {violation}"));
    assert!(data_inline == 0 || payload == 0, "{what}: both");
    let outside = data_inline as usize + usize::try_from(payload).unwrap();
    let second = data.map_or(main, |data| (data, frame.side));
    let place = if data.is_some() {
        Place::Data
    } else {
        Place::Bulk
    };
    if outside != 0 {
        assert!(
            take(streams, second, outside) == frame.bytes(place),
            "{what}: payload"
        );
    } else {
        assert!(
            frame.bytes(place).is_empty(),
            "{what}: payload that was not planned"
        );
    }
}
