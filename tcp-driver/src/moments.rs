//! In unit tests, the moments of a poll: whatever comes at any of them, the driver does not sleep
//! over it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xio_proto::{
    Config, ConnectOptions, ConnectionId, Event, ListenOptions, Message, RequestOptions,
    SessionOpen,
};

use crate::{Driver, Options, TcpDriver, Waker};

type Watch = Box<dyn FnMut(&'static str)>;

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
    static LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

/// A poll is there now. What the watch does itself is no moment.
pub(crate) fn moment(which: &'static str) {
    if let Some(mut watch) = WATCH.take() {
        watch(which);
        WATCH.set(Some(watch));
    }
}

/// It is about to wait; "asleep" is a moment when nothing ends that, and "still asleep" when what
/// came then does not either.
pub(crate) fn waits(driver: &impl std::os::fd::AsFd) {
    let is_watched = WATCH.with_borrow(|watch| watch.is_some());
    for which in ["asleep", "still asleep"] {
        if !is_watched || is_readable(driver) {
            return;
        }
        moment(which);
    }
}

/// A deliberate fault: it does not say that it is about to sleep.
pub(crate) fn leaves_out_saying_so() -> bool {
    LEFT_OUT.get()
}

fn is_readable(driver: &impl std::os::fd::AsFd) -> bool {
    let mut fds = [PollFd::new(driver, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("a descriptor") > 0
}

/// What comes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Comes {
    /// Bytes of the peer: a message.
    Message,
    /// Another thread calls.
    Call,
}

/// What the driver that polls cannot know, and its watch does.
struct Outside {
    peer: TcpDriver,
    connection: ConnectionId,
    caller: Waker,
    comes: Comes,
    left: usize,
    came: Option<&'static str>,
    /// It slept over it.
    over: bool,
}

impl Outside {
    fn moment(&mut self, which: &'static str) {
        if self.came.is_some() {
            // A poll that knows of it is over before it sleeps.
            if which.ends_with("asleep") {
                self.over = true;
                self.caller.ring();
                self.caller.wake();
            }
        } else if self.left == 0 || which == "asleep" {
            self.came = Some(which);
            match self.comes {
                Comes::Message => self.send(),
                Comes::Call => self.caller.wake(),
            }
        } else {
            self.left -= 1;
        }
    }

    fn send(&mut self) {
        let (message, options) = (Message::default(), RequestOptions::default());
        let peer = &mut self.peer;
        peer.send_one_way(self.connection, &message, &options)
            .expect("there is room");
        peer.poll(Some(Duration::ZERO)).expect("it can go on");
    }
}

fn start(number: u8) -> TcpDriver {
    let config = Config {
        keepalive: None,
        ..Config::new(number, 160, 160)
    };
    let counts = TcpDriver::counts(&config, 4);
    TcpDriver::new(config, &counts, Options::default()).unwrap()
}

/// Two drivers that are connected and have nothing to do, and the second one's connection.
fn connected() -> (TcpDriver, TcpDriver, ConnectionId) {
    let (mut driver, mut peer) = (start(0), start(1));
    let listen = ListenOptions {
        user: 0,
        backlog: 4,
    };
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = driver.listen(address, &listen).unwrap();
    let address = driver.listening(listener).unwrap();
    let open = SessionOpen {
        uri: "tcp://127.0.0.1/x",
        private: b"",
    };
    peer.connect(address, &open, &ConnectOptions::new(1))
        .unwrap();
    let (mut up, mut quiet, mut connection) = (0, 0, None);
    while up < 2 || quiet < 4 {
        quiet += 1;
        for is_peer in [false, true] {
            let side = if is_peer { &mut peer } else { &mut driver };
            side.poll(Some(Duration::from_millis(1))).unwrap();
            while let Some(event) = side.next_event() {
                quiet = 0;
                if let Event::SessionRequest { session, .. } = event {
                    side.accept(session, 2, &[], b"").unwrap();
                } else if let Event::Established {
                    connection: its, ..
                } = event
                {
                    up += 1;
                    connection = connection.or_else(|| is_peer.then_some(its));
                }
            }
        }
    }
    (driver, peer, connection.unwrap())
}

/// Moments of polls until what comes before the one after so many was heard of; where it came, or
/// that it was slept over.
fn run(comes: Comes, left: usize) -> Result<&'static str, String> {
    let (mut driver, peer, connection) = connected();
    let outside = Rc::new(RefCell::new(Outside {
        caller: driver.waker(),
        peer,
        connection,
        comes,
        left,
        came: None,
        over: false,
    }));
    let watched = Rc::clone(&outside);
    WATCH.set(Some(Box::new(move |which| {
        watched.borrow_mut().moment(which);
    })));
    let mut heard = false;
    for _ in 0..20 {
        let has_events = driver.poll(Some(Duration::from_secs(60))).unwrap();
        let came = outside.borrow().came.is_some();
        heard = came && (comes == Comes::Call || has_events);
        if heard || outside.borrow().over {
            break;
        }
    }
    WATCH.take();
    let outside = outside.borrow();
    let came = outside.came.unwrap_or_default();
    match outside.over || !heard {
        true => Err(format!("{comes:?} at {came:?} was slept over")),
        false => Ok(came),
    }
}

/// Every moment until the last, which is that it sleeps: how many there are.
fn every_moment(comes: Comes) -> Result<usize, String> {
    for moments in 0..1000 {
        if run(comes, moments)? == "asleep" {
            return Ok(moments + 1);
        }
    }
    panic!("it never sleeps");
}

#[test]
fn nothing_is_slept_over_at_any_moment() {
    for comes in [Comes::Message, Comes::Call] {
        let moments = every_moment(comes).unwrap();
        println!("{comes:?}: {moments} moments");
        assert!(moments > 3, "a poll has more");
    }
}

#[test]
fn driver_that_does_not_say_that_it_sleeps_is_found() {
    LEFT_OUT.set(true);
    let found = every_moment(Comes::Call);
    LEFT_OUT.set(false);
    println!("{}", found.expect_err("nothing was slept over"));
}
