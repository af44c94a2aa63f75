//! What small messages cost: allocations, counted by the allocator, and calls, counted by the
//! driver. Two endpoints on one device, in one thread, 16 requests under way.
#![allow(clippy::disallowed_methods, reason = "a test that hangs must end")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use xio_proto::{
    Config, ConnectOptions, ConnectionId, Event, ListenOptions, Message, RequestOptions,
    SessionOpen, SlotId,
};
use xio_verbs::{DeviceChoice, Driver, Options, Spin, VerbsDriver};

const MESSAGES: u64 = 100_000;
const WARM: u64 = 1000;
const DEPTH: u64 = 16;
const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 99, 0, 1));

struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

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

fn driver(number: u8) -> VerbsDriver {
    let config = Config::new(number, 160, 64);
    let counts = VerbsDriver::counts(&config, 4);
    let options = Options {
        device: DeviceChoice::Address(IP),
        spin: Spin::Always,
        // Not asked for while messages come, unless they pause.
        cm_interval: Duration::from_secs(1000),
        rnr_retry_max: 0,
        ..Options::default()
    };
    VerbsDriver::new(config, &counts, &options).expect("a device")
}

fn write(driver: &mut VerbsDriver, slot: SlotId, user: u64) -> Message<'static> {
    let written = driver.with_slot(slot, |room| room[..64].fill(user as u8));
    written.expect("reserved");
    Message {
        slot: Some(slot),
        slot_data: 64,
        user,
        ..Message::default()
    }
}

fn send(client: &mut VerbsDriver, connection: ConnectionId, user: u64) {
    let slot = client.reserve_slot(connection).expect("a slot");
    let message = write(client, slot, user);
    let options = RequestOptions::default();
    client.send(connection, &message, &options).expect("room");
}

fn serve(server: &mut VerbsDriver, event: Event) {
    match event {
        Event::SessionRequest { session, .. } => {
            server.accept(session, 2, &[], b"").expect("accepts");
        }
        Event::Request { task, .. } => {
            let slot = server.reserve_answer_slot(task).expect("a slot");
            let message = write(server, slot, 0);
            server.respond(task, &message).expect("answers");
        }
        _ => {}
    }
}

#[test]
fn no_allocation_and_few_calls_per_message() {
    let (mut server, mut client) = (driver(0), driver(1));
    let listen = ListenOptions {
        user: 0,
        backlog: 4,
    };
    let listener = server.listen((IP, 0).into(), &listen).expect("listens");
    let peer: SocketAddr = server.listening(listener).expect("bound");
    let open = SessionOpen {
        uri: "rdma://costs",
        private: b"",
    };
    let connection = client
        .connect(peer, &open, &ConnectOptions::new(1))
        .expect("room");
    let (mut sent, mut done, mut before) = (0, 0, None);
    let until = Instant::now() + Duration::from_secs(300);
    let mut is_up = false;
    while done < WARM + MESSAGES {
        while let Some(event) = server.next_event() {
            serve(&mut server, event);
        }
        while let Some(event) = client.next_event() {
            match event {
                Event::Established { .. } => is_up = true,
                Event::Response { task, .. } => {
                    client.release(task).expect("ours");
                    done += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        if done == WARM && before.is_none() {
            before = Some((*client.stats(), *server.stats()));
            COUNTS.store(true, Ordering::Relaxed);
        }
        let most = if done < WARM { WARM } else { WARM + MESSAGES };
        while is_up && sent < most && sent - done < DEPTH {
            send(&mut client, connection, sent);
            sent += 1;
        }
        server.poll(Some(Duration::ZERO)).expect("polls");
        client.poll(Some(Duration::ZERO)).expect("polls");
        assert!(Instant::now() < until, "nothing came of it");
    }
    COUNTS.store(false, Ordering::Relaxed);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    let (client_before, server_before) = before.expect("warm");
    for (name, now, before) in [
        ("client", client.stats(), client_before),
        ("server", server.stats(), server_before),
    ] {
        let sends = now.sends - before.sends;
        let signaled = now.signaled - before.signaled;
        let calls = now.send_calls - before.send_calls;
        let asks = now.cm_asks - before.cm_asks;
        println!("{name}: {sends} sends in {calls} calls, {signaled} signaled; {asks} asks");
        assert!(calls <= sends);
        // In spin mode the driver never sleeps or arms.
        assert_eq!(
            (now.sleeps, now.arms),
            (before.sleeps, before.arms),
            "{name}"
        );
        assert_eq!(now.cm_events, before.cm_events, "{name}");
    }
    assert_eq!(allocations, 0, "allocations in {MESSAGES} round trips");
}
