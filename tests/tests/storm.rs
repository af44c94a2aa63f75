//! Half of all requests are cancelled or expire at random moments: each has its one outcome, and
//! its buffer comes back once and not before nobody touches it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use xio_proto::driver::{BufferError, BufferId};
use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Driver, Event, ListenOptions, Message,
    RequestOptions, SessionOpen, TaskId,
};
use xio_tcp::{Options, TcpDriver};
use xio_tests::stream_pair::Rng;

/// Bytes of a request; its number over and over.
const LEN: usize = 2048;
/// Requests under way at once.
const WINDOW: usize = 96;

/// A request that is under way, or whose buffer is.
struct Under {
    task: TaskId,
    buffer: BufferId,
    has_outcome: bool,
}

#[derive(Default)]
struct Counts {
    answered: u64,
    cancelled: u64,
    timed_out: u64,
    returned_later: u64,
}

struct Client {
    driver: TcpDriver,
    connection: Option<ConnectionId>,
    under: BTreeMap<u64, Under>,
    idle: Vec<BufferId>,
    next: u64,
    counts: Counts,
    closed: bool,
}

impl Client {
    /// Sends one; false when there is no room.
    fn send(&mut self, rng: &mut Rng) -> bool {
        let (Some(connection), Some(buffer)) = (self.connection, self.idle.last().copied()) else {
            return false;
        };
        let number = self.next + 1;
        let filled = self.driver.with_buffer(buffer, |bytes| {
            for place in bytes.chunks_exact_mut(8) {
                place.copy_from_slice(&number.to_be_bytes());
            }
        });
        filled.expect("nobody else has it");
        let data = [self.driver.segment(buffer, 0..LEN).expect("it is there")];
        let message = Message {
            data: &data,
            user: number,
            ..Message::default()
        };
        let soon = Duration::from_micros(rng.below(2000) as u64);
        let deadline = (rng.below(3) == 0).then(|| self.driver.now().after(soon));
        let options = RequestOptions {
            deadline,
            ..RequestOptions::default()
        };
        match self.driver.send(connection, &message, &options) {
            Ok(task) => {
                self.idle.pop();
                self.next = number;
                let under = Under {
                    task,
                    buffer,
                    has_outcome: false,
                };
                self.under.insert(number, under);
                true
            }
            Err(CommandError::Full(_) | CommandError::NoCredit) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Cancels one of those without an outcome.
    fn cancel(&mut self, rng: &mut Rng) {
        let open = self.under.values().filter(|under| !under.has_outcome);
        let open: Vec<_> = open.map(|under| under.task).collect();
        if !open.is_empty() {
            // It may be answered already, and not heard.
            let _ = self.driver.cancel(open[rng.below(open.len())]);
        }
    }

    fn outcome(&mut self, number: u64, is_back: bool) {
        let under = self.under.get_mut(&number).expect("it was taken");
        assert!(!under.has_outcome, "two outcomes of {number}");
        under.has_outcome = true;
        if is_back {
            self.back(number);
            return;
        }
        let buffer = under.buffer;
        let reached = self.driver.with_buffer(buffer, |_| ());
        assert!(
            matches!(reached, Err(BufferError::InFlight(_))),
            "{reached:?}"
        );
        self.counts.returned_later += 1;
    }

    fn back(&mut self, number: u64) {
        let under = self.under.remove(&number).expect("it came back once");
        assert!(under.has_outcome, "{number} is back before its outcome");
        // Whoever still sends from it sends something wrong.
        let spoiled = self
            .driver
            .with_buffer(under.buffer, |bytes| bytes.fill(0xee));
        spoiled.expect("nobody else has it");
        self.idle.push(under.buffer);
    }

    fn hear(&mut self) {
        while let Some(event) = self.driver.next_event() {
            match event {
                Event::Established {
                    connection,
                    message,
                    ..
                } => {
                    self.connection = Some(connection);
                    let released = message.map_or(Ok(()), |task| self.driver.release(task));
                    released.expect("it is ours");
                }
                Event::Response {
                    task,
                    user,
                    buffers_returned,
                    ..
                } => {
                    self.counts.answered += 1;
                    self.outcome(user, buffers_returned);
                    self.driver.release(task).expect("it is ours");
                }
                Event::Cancelled {
                    user,
                    buffers_returned,
                    ..
                } => {
                    self.counts.cancelled += 1;
                    self.outcome(user, buffers_returned);
                }
                Event::TimedOut {
                    user,
                    buffers_returned,
                    ..
                } => {
                    self.counts.timed_out += 1;
                    self.outcome(user, buffers_returned);
                }
                Event::BuffersReturned { user, .. } => self.back(user),
                Event::Closed { .. } => self.closed = true,
                Event::Writable { .. } | Event::SessionClosed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn serve(server: &mut TcpDriver, came: &mut u64) {
    while let Some(event) = server.next_event() {
        match event {
            Event::SessionRequest { session, .. } => {
                server.accept(session, 0, &[], b"").expect("there is room");
            }
            Event::Request { task, data, .. } => {
                let mut bytes = Vec::new();
                server.with_data(data, |piece| bytes.extend_from_slice(piece));
                let number: [u8; 8] = *bytes.first_chunk().expect("a number");
                assert_eq!(bytes.len(), LEN);
                let same = bytes.chunks_exact(8).all(|place| *place == number);
                assert!(same, "a buffer was changed under way");
                *came += 1;
                let answer = server.respond(task, &Message::default());
                answer.expect("there is room for all that may come at once");
            }
            _ => {}
        }
    }
}

fn driver(number: u8) -> TcpDriver {
    let config = Config::new(number, 512, 512);
    let counts = TcpDriver::counts(&config, 4);
    // Small, so that frames are half written most of the time.
    let options = Options {
        send_buffer: Some(4096),
        receive_buffer: Some(4096),
        ..Options::default()
    };
    TcpDriver::new(config, &counts, options).expect("it can work")
}

fn storm(requests: u64, seed: u64) -> Counts {
    let mut rng = Rng::new(seed);
    let (mut server, mut came) = (driver(0), 0);
    let options = ListenOptions {
        user: 0,
        backlog: 4,
    };
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listener = server.listen(any, &options).expect("there is room");
    let address = server.listening(listener).expect("it is bound");
    let mut client = Client {
        driver: driver(1),
        connection: None,
        under: BTreeMap::new(),
        idle: Vec::new(),
        next: 0,
        counts: Counts::default(),
        closed: false,
    };
    let free = client.driver.look(|endpoint| endpoint.free_rows());
    for _ in 0..WINDOW {
        client
            .idle
            .push(client.driver.allocate(LEN).expect("memory"));
    }
    let uri = format!("tcp://{address}/");
    let open = SessionOpen {
        uri: &uri,
        private: b"",
    };
    let asked = client
        .driver
        .connect(address, &open, &ConnectOptions::new(0));
    asked.expect("there is room");
    while !client.closed {
        client.driver.poll(Some(Duration::ZERO)).expect("events");
        client.hear();
        if client.next < requests {
            for _ in 0..=rng.below(16) {
                let _ = client.next < requests && client.send(&mut rng);
            }
            if rng.below(4) == 0 {
                client.cancel(&mut rng);
            }
        } else if client.under.is_empty()
            && let Some(connection) = client.connection.take()
        {
            client.driver.close(connection).expect("it is up");
        }
        // The peer is slow now and then, so that much is under way.
        if rng.below(2) == 0 {
            server.poll(Some(Duration::ZERO)).expect("events");
            serve(&mut server, &mut came);
        }
    }
    assert_eq!(client.idle.len(), WINDOW, "a buffer is missing");
    assert_eq!(client.driver.in_flight(), 0);
    let counts = &client.counts;
    let outcomes = counts.answered + counts.cancelled + counts.timed_out;
    assert_eq!(outcomes, requests, "an outcome each");
    assert!(came <= requests && came >= counts.answered);
    let left = client.driver.look(|endpoint| endpoint.free_rows());
    assert_eq!(
        (left.tasks, left.tx_slots, left.rx_slots),
        (free.tasks, free.tx_slots, free.rx_slots)
    );
    client.counts
}

/// `XIO_STORM=100000` makes it as long as a release is tried with.
#[test]
fn half_of_all_requests_are_given_up() {
    let wanted = std::env::var("XIO_STORM").ok();
    let requests = wanted.map_or(10_000, |text| text.parse().expect("a number"));
    let counts = storm(requests, 5);
    let Counts {
        answered,
        cancelled,
        timed_out,
        returned_later,
    } = counts;
    println!(
        "{answered} answered, {cancelled} cancelled, {timed_out} timed out; {returned_later} buffers later"
    );
    let least = requests / 20;
    assert!(cancelled > least && timed_out > 0 && answered > least);
    assert!(returned_later > 0, "no buffer was ever under way");
}
