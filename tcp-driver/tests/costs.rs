//! What small messages cost: system calls, counted by the driver, and allocations, counted by the
//! allocator. Two threads, an endpoint each, 64 requests under way.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{connect, driver, echo_in_place, listen, request};
use xio_proto::Event;
use xio_tcp::{Driver, Options, Stats, TcpDriver};

const MESSAGES: u64 = 100_000;
const WARM: u64 = 5_000;
const DEPTH: u64 = 64;

struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// The tests of this file share the allocator's count.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads and writes per message.
fn per_message(before: Stats, after: Stats, messages: u64) -> (f64, f64) {
    let share = |count: u64| count as f64 / messages as f64;
    (
        share(after.reads - before.reads),
        share(after.writes - before.writes),
    )
}

fn serve(mut server: TcpDriver) -> Stats {
    let mut stats = None;
    loop {
        while let Some(event) = server.next_event() {
            match event {
                // The client marks the first message that counts, and closes after the last.
                Event::Request { data, .. } if stats.is_none() && first_counted(&server, data) => {
                    stats = Some(*server.stats());
                    echo_in_place(&mut server, event);
                }
                Event::Closed { .. } => {
                    let (mut all, before) = (*server.stats(), stats.unwrap_or_default());
                    all.reads -= before.reads;
                    all.writes -= before.writes;
                    return all;
                }
                event => echo_in_place(&mut server, event),
            }
        }
        server.poll(Some(Duration::from_secs(10))).expect("polls");
    }
}

fn first_counted(server: &TcpDriver, data: xio_proto::Data) -> bool {
    let xio_proto::Data::Slot(span) = data else {
        return false;
    };
    server.bytes(span)[..8] == WARM.to_be_bytes()
}

/// The client's loop: (reads, writes) per message, and allocations of both sides.
fn ask(client: &mut TcpDriver, connection: xio_proto::ConnectionId) -> (f64, f64, u64) {
    let (mut sent, mut done) = (0, 0);
    let (mut before, mut costs) = (Stats::default(), None);
    let mut data = [0x5a; 64];
    loop {
        while let Some(event) = client.next_event() {
            match event {
                Event::Response { task, user, .. } => {
                    client.release(task).expect("ours");
                    assert_eq!(user, done, "in order");
                    done += 1;
                }
                Event::Closed { .. } => return costs.expect("all sent"),
                Event::Established { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if done == WARM && sent == WARM {
            before = *client.stats();
            COUNTS.store(true, Ordering::Relaxed);
        }
        // The last of the warm-up come back before the first that count leave.
        let most = if done < WARM { WARM } else { WARM + MESSAGES };
        while sent < most && sent - done < DEPTH {
            data[..8].copy_from_slice(&sent.to_be_bytes());
            request(client, connection, &data, sent);
            sent += 1;
        }
        if done == WARM + MESSAGES && costs.is_none() {
            COUNTS.store(false, Ordering::Relaxed);
            let (reads, writes) = per_message(before, *client.stats(), MESSAGES);
            costs = Some((reads, writes, ALLOCATIONS.swap(0, Ordering::Relaxed)));
            client.close(connection).expect("open");
        }
        client.poll(Some(Duration::from_secs(10))).expect("polls");
    }
}

fn costs(dual: bool, most: f64) {
    let _alone = ALONE.lock().expect("no test before failed");
    let (tell, hear) = channel();
    let server = std::thread::spawn(move || {
        let mut server = driver(0, Options::default());
        let (_, at) = listen(&mut server, "127.0.0.1:0");
        tell.send(at).expect("awaited");
        serve(server)
    });
    let at = hear.recv().expect("told");
    let mut client = driver(1, Options::default());
    let connection = connect(&mut client, at, dual);
    let (reads, writes, allocations) = ask(&mut client, connection);
    let served = server.join().expect("serves");
    let (their_reads, their_writes) = per_message(Stats::default(), served, MESSAGES);
    println!(
        "{} streams: client {reads:.3} reads, {writes:.3} writes; server {their_reads:.3}, \
         {their_writes:.3}; {allocations} allocations",
        1 + u8::from(dual)
    );
    assert_eq!(allocations, 0, "over {MESSAGES} round trips");
    for share in [reads, writes, their_reads, their_writes] {
        assert!(share <= most, "{share} system calls per message");
    }
}

#[test]
fn one_stream() {
    costs(false, 0.2);
}

#[test]
fn two_streams() {
    costs(true, 0.4);
}
