//! Whatever comes at whatever moment of a poll, the driver does not sleep over it: a message, the
//! end of a peer, a call from another thread, each before every call that a poll makes, right before
//! it sleeps, and while it does.

use std::cell::RefCell;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::time::Duration;

use xio_proto::{
    Config, ConnectOptions, ConnectionId, Driver, Event, ListenOptions, Message, RequestOptions,
    SessionOpen,
};

use super::super::{IP, leave_out, unwatch, watch, with};
use super::{options, world};
use crate::VerbsDriver;
use crate::options::DeviceChoice;

/// What comes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Comes {
    /// A message: a completion.
    Message,
    /// The peer is gone: an event of the communication manager, and flushes.
    End,
    /// Another thread calls.
    Call,
}

/// What the driver that polls cannot know, and its watch does.
struct Outside {
    peer: Option<VerbsDriver>,
    /// The peer's end of the connection.
    connection: ConnectionId,
    caller: crate::Waker,
    comes: Comes,
    /// Steps until it comes.
    left: usize,
    /// Where it came.
    came: Option<&'static str>,
    /// Queue and channel of the driver.
    queue: usize,
    channel: usize,
    /// What it slept over.
    over: Option<String>,
}

impl Outside {
    fn new(
        driver: &VerbsDriver,
        peer: VerbsDriver,
        connection: ConnectionId,
        comes: Comes,
        left: usize,
    ) -> Self {
        Self {
            caller: driver.waker(),
            peer: Some(peer),
            connection,
            comes,
            left,
            came: None,
            queue: 0,
            channel: 0,
            over: None,
        }
    }

    fn step(&mut self, call: &'static str, at: usize) {
        match call {
            "ibv_poll_cq" => self.queue = at,
            "rdma_get_cm_event" => self.channel = at,
            "still asleep" => return self.asleep(),
            _ => {}
        }
        if self.came.is_some() {
            if call == "asleep" {
                self.asleep();
            }
        } else if self.left == 0 || call == "asleep" {
            self.came = Some(call);
            self.come();
        } else {
            self.left -= 1;
        }
    }

    fn come(&mut self) {
        match self.comes {
            Comes::Message => {
                let peer = self.peer.as_mut().expect("it is there");
                let message = Message::default();
                let options = RequestOptions::default();
                peer.send_one_way(self.connection, &message, &options)
                    .expect("there is room");
                peer.poll(Some(Duration::ZERO)).expect("it can go on");
            }
            Comes::End => self.peer = None,
            Comes::Call => self.caller.wake(),
        }
    }

    /// It sleeps, and no descriptor ends that: there must be nothing.
    fn asleep(&mut self) {
        let (queue, channel) = (self.queue, self.channel);
        let left = with(|world| (world.completions(queue), world.events(channel)));
        if left != (0, 0) || self.comes == Comes::Call {
            let (done, events) = left;
            let came = self.came.unwrap_or_default();
            self.over = Some(format!(
                "{:?} at {came}: {done} completions, {events} events",
                self.comes
            ));
            self.caller.nudge();
            self.caller.wake();
        }
    }
}

fn listens(driver: &mut VerbsDriver) -> std::net::SocketAddr {
    let listen = ListenOptions {
        user: 0,
        backlog: 4,
    };
    let listener = driver.listen((IP, 0).into(), &listen).unwrap();
    driver.listening(listener).unwrap()
}

/// Two drivers that are connected and have nothing to do, and the second one's connection.
fn connected() -> (VerbsDriver, VerbsDriver, ConnectionId) {
    world(None);
    let options = options(DeviceChoice::Address(IP.into()), false);
    // Deadlines as they are by default: a busy machine is none to be late on.
    let start = |number| {
        let config = Config::new(number, 80, 80);
        let counts = VerbsDriver::counts(&config, 4);
        VerbsDriver::new(config, &counts, &options).unwrap()
    };
    let (mut driver, mut peer) = (start(0), start(1));
    let address = listens(&mut driver);
    let open = SessionOpen {
        uri: "rdma://fake",
        private: b"",
    };
    peer.connect(address, &open, &ConnectOptions::new(1))
        .unwrap();
    let (mut up, mut quiet, mut connection) = (0, 0, None);
    while up < 2 || quiet < 4 {
        quiet += 1;
        for is_peer in [false, true] {
            let side = if is_peer { &mut peer } else { &mut driver };
            side.poll(Some(Duration::ZERO)).unwrap();
            while let Some(event) = side.next_event() {
                quiet = 0;
                match event {
                    Event::SessionRequest { session, .. } => {
                        side.accept(session, 2, &[], b"").unwrap();
                    }
                    Event::Established {
                        connection: its, ..
                    } => {
                        up += 1;
                        connection = connection.or_else(|| is_peer.then_some(its));
                    }
                    _ => {}
                }
            }
        }
    }
    (driver, peer, connection.unwrap())
}

/// Polls until the driver knows of what came before its step `left`, and of what comes after it.
/// Where it came, or what was slept over.
fn run(comes: Comes, left: usize, rounds: usize) -> Result<&'static str, String> {
    let (mut driver, peer, connection) = connected();
    let outside = Outside::new(&driver, peer, connection, comes, left);
    let outside = Rc::new(RefCell::new(outside));
    // The round that is looked at is the last: those before it leave notices taken and asked for.
    let mut result = Ok("");
    for round in 0..rounds {
        let is_last = round + 1 == rounds;
        {
            let mut outside = outside.borrow_mut();
            outside.came = None;
            outside.comes = if is_last { comes } else { Comes::Message };
            outside.left = if is_last { left } else { usize::MAX };
        }
        let watched = Rc::clone(&outside);
        watch(move |call, at| watched.borrow_mut().step(call, at));
        let heard = hear(&mut driver, &outside);
        unwatch();
        let outside = outside.borrow();
        let came = outside.came.unwrap_or_default();
        result = match &outside.over {
            Some(over) => Err(over.clone()),
            None if !heard => Err(format!("{comes:?} at {came} was not heard of")),
            None => Ok(came),
        };
        if result.is_err() {
            break;
        }
    }
    drop(outside);
    drop(driver);
    result
}

/// Polls until what comes was heard of.
fn hear(driver: &mut VerbsDriver, outside: &RefCell<Outside>) -> bool {
    for _ in 0..20 {
        driver.poll(Some(Duration::from_secs(60))).unwrap();
        let mut heard = outside.borrow().comes == Comes::Call && outside.borrow().came.is_some();
        while let Some(event) = driver.next_event() {
            match event {
                Event::OneWay { task, .. } => {
                    driver.release(task).unwrap();
                    heard = true;
                }
                Event::Closed { .. } => heard = true,
                _ => {}
            }
        }
        if heard || outside.borrow().over.is_some() {
            return heard;
        }
    }
    false
}

/// Every moment, until the last, which is that it sleeps: how many there are.
fn every_moment(comes: Comes, rounds: usize) -> Result<usize, String> {
    let mut moments = 0;
    loop {
        let at = run(comes, moments, rounds)?;
        moments += 1;
        if at == "asleep" {
            return Ok(moments);
        }
        assert!(moments < 1000, "it never sleeps");
    }
}

/// What comes before a step of `arm`: true when it came, and neither `arm` nor the descriptor says
/// so. `None` when `arm` has no such step.
fn armed_over(comes: Comes, left: usize) -> Option<bool> {
    let (mut driver, peer, connection) = connected();
    let outside = Outside::new(&driver, peer, connection, comes, left);
    let outside = Rc::new(RefCell::new(outside));
    let watched = Rc::clone(&outside);
    watch(move |call, at| watched.borrow_mut().step(call, at));
    let is_armed = driver.arm().unwrap();
    unwatch();
    let came = outside.borrow().came;
    let is_readable = is_readable(&driver);
    outside.borrow_mut().peer = None;
    came.map(|_| is_armed && !is_readable)
}

fn is_readable(driver: &VerbsDriver) -> bool {
    let mut poll = libc::pollfd {
        fd: driver.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor is there; it does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Moments of `arm`, or one at which it says that there is nothing, and something came.
fn every_moment_of_arm(comes: Comes) -> Result<usize, String> {
    for moment in 0.. {
        match armed_over(comes, moment) {
            None => return Ok(moment),
            Some(false) => {}
            Some(true) => return Err(format!("{comes:?} before step {moment}")),
        }
    }
    unreachable!("arm is over at some time")
}

const ALL: [Comes; 3] = [Comes::Message, Comes::End, Comes::Call];

#[test]
fn nothing_is_slept_over_at_any_moment() {
    for comes in ALL {
        for rounds in [1, 2, 3] {
            let moments = every_moment(comes, rounds).unwrap();
            println!("{comes:?} after {} messages: {moments} moments", rounds - 1);
            assert!(moments > 3, "no poll is over so soon");
        }
    }
}

/// A runtime that waits for the descriptor after `arm` is woken.
#[test]
fn nothing_is_armed_over_at_any_moment() {
    for comes in ALL {
        let moments = every_moment_of_arm(comes).unwrap();
        println!("{comes:?}: {moments} moments of arm");
        assert!(moments > 3, "it does more than that");
    }
}

/// A driver that leaves out a part of how it falls asleep sleeps over something.
#[test]
fn driver_that_falls_asleep_wrongly_is_found() {
    for (part, comes) in [
        ("arm", Comes::Message),
        ("look again", Comes::Message),
        ("announce", Comes::Call),
    ] {
        leave_out(part);
        let found = (1..3).find_map(|rounds| every_moment(comes, rounds).err());
        leave_out("");
        let found = found.unwrap_or_else(|| panic!("without {part:?} nothing was slept over"));
        println!("without {part:?}: {found}");
    }
}
