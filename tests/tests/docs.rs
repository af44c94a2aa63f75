//! The root documents say what the code says: tables of bytes, states, types, codes and times are
//! compared, citations lead somewhere, and the example in the README is the one that is run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xio_proto::storage::{
    Connection, Extent, Listener, Nexus, Region, Session, Slot, Socket, Task, TimerEntry, WorkEntry,
};
use xio_proto::wire::{Dialect, Kind, status};
use xio_proto::{Config, MACHINES};

const PROTOCOL: &str = include_str!("../../PROTOCOL.md");
const README: &str = include_str!("../../README.md");
const HEADERS: &str = include_str!("../../proto-core/src/wire/headers.rs");
const CRATE_DOC: &str = include_str!("../../proto-core/src/lib.rs");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The cells of a table's row, without the marks of code.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim_matches('|');
    line.split('|')
        .map(|cell| cell.trim().trim_matches('`').to_owned())
        .collect()
}

/// The rows of the first table at or after a line, without its head.
fn table<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Vec<String>> {
    lines
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(cells)
        .collect()
}

/// The first table after the line that begins with `start`.
fn table_after(start: &str) -> Vec<Vec<String>> {
    let found = PROTOCOL.lines().any(|line| line.starts_with(start));
    assert!(found, "PROTOCOL.md has no line {start:?}");
    table(PROTOCOL.lines().skip_while(|line| !line.starts_with(start)))
}

/// Bytes of a type in the declarations of layouts.
fn width(ty: &str) -> usize {
    match ty {
        "u8" => 1,
        "U16" => 2,
        "U32" => 4,
        "U64" => 8,
        "Tlv" => 16,
        // Parts of a front, which is not told of.
        _ if ty.ends_with("Header") => 0,
        _ => match ty.strip_prefix("[u8; ").and_then(|n| n.strip_suffix(']')) {
            Some(count) => count.parse().expect("a count"),
            None => panic!("type {ty} in a layout"),
        },
    }
}

/// Name, size and fields (offset, bytes, name) of every layout that the codec declares.
fn layouts() -> Vec<(String, usize, Vec<[String; 3]>)> {
    let blocks = HEADERS.split("layout! {").skip(1);
    let parse = |block: &str| {
        let body = block.split("\n}").next().expect("an end");
        let mut lines = body
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("///"));
        let head = lines.next().expect("a name and a size");
        let (name, size) = head.trim_end_matches(" {").split_once(", ").expect("two");
        let fields = lines.take_while(|line| *line != "}").map(|line| {
            let (offset, rest) = line.split_once(' ').expect("an offset");
            let (field, ty) = rest.split_once(": ").expect("a type");
            let bytes = width(ty.trim_end_matches(','));
            [offset.to_owned(), bytes.to_string(), field.to_owned()]
        });
        let fields = fields.collect();
        (name.to_owned(), size.parse().expect("a size"), fields)
    };
    // The first one is the macro's own definition.
    blocks
        .skip_while(|b| !b.contains("Tlv, 16"))
        .map(parse)
        .collect()
}

#[test]
fn every_layout_is_in_the_protocol_as_it_is_in_the_code() {
    let mut count = 0;
    for (name, size, fields) in layouts() {
        if name.ends_with("Front") {
            continue;
        }
        let rows = table_after(&format!("Layout `{name}`, {size} bytes"));
        let found: Vec<[String; 3]> = rows
            .into_iter()
            .map(|row| [row[0].clone(), row[1].clone(), row[2].clone()])
            .collect();
        assert_eq!(found, fields, "{name}");
        count += 1;
    }
    let told = PROTOCOL.lines().filter(|line| line.starts_with("Layout `"));
    assert_eq!(told.count(), count, "layouts in PROTOCOL.md");
    assert!(count > 15, "{count} layouts found");
}

#[test]
fn every_type_of_frame_is_in_the_protocol() {
    let rows = table_after("### 1.2 Types of frames");
    assert_eq!(rows.len(), Kind::ALL.len());
    for (row, kind) in rows.iter().zip(Kind::ALL) {
        assert_eq!(row[0], format!("{:#06x}", kind.word()), "{kind:?}");
        let name = row[1].split(':').next().expect("a name");
        assert_eq!(name, kind.name(), "{kind:?}");
        let on_tcp = Kind::from_word(kind.word(), Dialect::Tcp).is_ok();
        assert_eq!(row[2], if on_tcp { "both" } else { "RDMA" }, "{kind:?}");
        let headers = match (kind.is_request(), kind.is_response()) {
            (true, _) => "session, request",
            (_, true) => "session, response",
            _ => "its own",
        };
        assert_eq!(row[3], headers, "{kind:?}");
        let application = row[4].starts_with("application");
        assert_eq!(application, kind.is_application(), "{kind:?}");
    }
}

/// The rows that the protocol gives of a machine are declared, and none is missing of the states
/// that it tells of.
#[test]
fn tables_of_states_are_the_declared_ones() {
    for name in ["socket", "session", "connection"] {
        let machine = MACHINES.iter().find(|m| m.name == name).expect("a machine");
        let text = |row: &xio_proto::Row| {
            [
                machine.states[usize::from(row.from)],
                machine.inputs[usize::from(row.input)],
                machine.states[usize::from(row.next)],
            ]
        };
        let told = table_after(&format!("Rows of the machine `{name}`"));
        for row in &told {
            let declared = machine.rows.iter().any(|r| text(r) == row[..3]);
            assert!(declared, "machine {name} has no row {row:?}");
        }
        for row in machine.rows.iter().map(text) {
            let of_a_told_state = told.iter().any(|r| r[0] == row[0]);
            let is_told = told.iter().any(|r| r[..3] == row);
            assert!(is_told || !of_a_told_state, "{row:?} of {name} is missing");
        }
    }
}

#[test]
fn status_codes_are_the_ones_of_the_code() {
    let mut count = 0;
    for row in table_after("## 17. Status codes") {
        for pair in row.chunks(2) {
            let above: u32 = pair[0].parse().expect("a number");
            assert_eq!(status::name(status::BASE + above), Some(pair[1].as_str()));
            count += 1;
        }
    }
    assert_eq!(status::name(status::BASE + count), None);
}

#[test]
fn default_times_are_the_ones_of_the_code() {
    let config = Config::new(0, 64, 64);
    let text = |time: Duration| match time.as_millis() {
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    };
    let keepalive = config.keepalive.expect("on by default");
    let keepalive = format!(
        "{}, {}, {}",
        text(keepalive.time),
        text(keepalive.interval),
        keepalive.probes
    );
    let rows = table_after("## 12. Deadlines");
    for (setting, value) in [
        ("connect_timeout", text(config.connect_timeout)),
        ("setup_timeout", text(config.setup_timeout)),
        ("fin_timeout", text(config.fin_timeout)),
        ("time_wait", text(config.time_wait)),
        ("keepalive", keepalive),
        ("linger", text(config.linger)),
        ("drain_timeout", text(config.drain_timeout)),
        ("provide_timeout", text(config.provide_timeout)),
    ] {
        let told: Vec<_> = rows.iter().filter(|row| row[0] == setting).collect();
        assert!(!told.is_empty(), "{setting} is missing");
        assert!(told.iter().all(|row| row[1] == value), "{setting}: {value}");
    }
}

/// Row sizes in the documentation of the core, which are those of a 64-bit machine.
#[test]
#[cfg(target_pointer_width = "64")]
fn row_sizes_are_the_documented_ones() {
    let lines = CRATE_DOC
        .lines()
        .map(|line| line.trim_start_matches("//! "));
    let rows = table(lines.skip_while(|line| !line.starts_with("# Memory")));
    let of = |count: &str| {
        let row = rows.iter().find(|row| row[0] == count);
        row.unwrap_or_else(|| panic!("{count} is missing"))[2].clone()
    };
    let (slot, task) = (size_of::<Slot>(), size_of::<Task>());
    assert_eq!(of("listeners"), size_of::<Listener>().to_string());
    assert_eq!(of("nexuses"), size_of::<Nexus>().to_string());
    assert_eq!(of("sessions"), size_of::<Session>().to_string());
    assert_eq!(of("connections"), size_of::<Connection>().to_string());
    assert_eq!(of("tasks"), task.to_string());
    assert_eq!(of("rx_slots"), format!("{slot} + {task}"));
    assert_eq!(of("tx_slots"), slot.to_string());
    assert_eq!(of("work"), size_of::<WorkEntry>().to_string());
    assert_eq!(of("sockets"), size_of::<Socket>().to_string());
    assert_eq!(of("extents"), size_of::<Extent>().to_string());
    assert_eq!(of("regions"), size_of::<Region>().to_string());
    let timer = size_of::<TimerEntry>();
    let (nexus, session) = (size_of::<Nexus>(), size_of::<Session>());
    let connection = size_of::<Connection>();
    let idle = nexus + session + connection + 4 * timer;
    let told = format!("{nexus} + {session} + {connection} + 4 × {timer} = {idle} bytes");
    let text = CRATE_DOC.replace("\n//! ", " ");
    assert!(text.contains(&told), "not in the crate's doc: {told}");
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn citations_of_the_protocol_lead_to_a_section() {
    let headings: Vec<&str> = PROTOCOL
        .lines()
        .filter_map(|line| {
            line.strip_prefix("## ")
                .or_else(|| line.strip_prefix("### "))
        })
        .map(|heading| heading.split(' ').next().expect("a number"))
        .map(|number| number.trim_end_matches('.'))
        .collect();
    let mut files = Vec::new();
    for folder in ["proto-core/src", "sim-driver/src", "tests/src"] {
        sources(&root().join(folder), &mut files);
    }
    let mut count = 0;
    for file in &files {
        let text = fs::read_to_string(file).expect("readable");
        let text = text.replace("\n    /// ", " ").replace("\n/// ", " ");
        for after in text.split("PROTOCOL.md ").skip(1) {
            let numbers = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | ' ');
            let list = after.split(|c| !numbers(c)).next().expect("a start");
            for number in list.split([',', ' ']).filter(|part| !part.is_empty()) {
                let number = number.trim_end_matches('.');
                let known = number.is_empty() || headings.contains(&number);
                assert!(known, "{}: PROTOCOL.md {number}", file.display());
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count} citations found");
}

#[test]
fn example_in_the_readme_is_the_one_that_is_run() {
    let block = README.split("```rust\n").nth(1).expect("a block of Rust");
    let block = block.split("```").next().expect("its end");
    let file = include_str!("../examples/embed.rs");
    assert_eq!(block, file, "copy tests/examples/embed.rs into README.md");
}
