//! The twins: plain sockets.

use std::io::{ErrorKind, Read, Write};
use std::thread;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::{LARGE, SMALL, now, p50};

/// One side: some sockets and an event queue.
struct Side {
    poll: Poll,
    events: Events,
    sockets: Vec<TcpStream>,
}

impl Side {
    fn new(sockets: Vec<TcpStream>) -> Self {
        let poll = Poll::new().expect("an event queue");
        let mut side = Self {
            poll,
            events: Events::with_capacity(8),
            sockets,
        };
        for (n, socket) in side.sockets.iter_mut().enumerate() {
            socket.set_nodelay(true).expect("an option");
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = side.poll.registry();
            registry.register(socket, Token(n), interest).expect("room");
        }
        side
    }

    fn wait(&mut self) {
        while let Err(error) = self.poll.poll(&mut self.events, None) {
            assert_eq!(error.kind(), ErrorKind::Interrupted);
        }
    }

    /// Fills `bytes` from a socket; false when the peer is gone.
    fn read(&mut self, n: usize, bytes: &mut [u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            match self.sockets[n].read(&mut bytes[done..]) {
                Ok(0) => return false,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(),
                Err(error) => panic!("{error}"),
            }
        }
        true
    }

    fn write(&mut self, n: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            match self.sockets[n].write(&bytes[done..]) {
                Ok(written) => done += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Two sides with so many sockets between them.
fn connected(count: usize) -> [Side; 2] {
    let at = "127.0.0.1:0".parse().expect("an address");
    let mut listener = TcpListener::bind(at).expect("a port");
    let at = listener.local_addr().expect("bound");
    let mut poll = Poll::new().expect("an event queue");
    let registry = poll.registry();
    let listening = registry.register(&mut listener, Token(0), Interest::READABLE);
    listening.expect("room");
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..count {
        here.push(TcpStream::connect(at).expect("a socket"));
        let mut events = Events::with_capacity(1);
        there.push(loop {
            match listener.accept() {
                Ok((socket, _)) => break socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll.poll(&mut events, None).expect("events");
                }
                Err(error) => panic!("{error}"),
            }
        });
    }
    [Side::new(here), Side::new(there)]
}

/// Microseconds of a round trip; with two sockets a head goes over the one and data over the other.
pub(super) fn round_trip(sockets: usize, count: usize) -> f64 {
    let [mut here, mut there] = connected(sockets);
    let echo = thread::spawn(move || {
        let mut bytes = [0; SMALL];
        loop {
            for n in 0..sockets {
                if !there.read(n, &mut bytes) {
                    return;
                }
            }
            for n in 0..sockets {
                there.write(n, &bytes);
            }
        }
    });
    let mut times = Vec::with_capacity(count);
    let mut bytes = [7; SMALL];
    for _ in 0..count {
        let began = now();
        for n in 0..sockets {
            here.write(n, &bytes);
        }
        for n in 0..sockets {
            assert!(here.read(n, &mut bytes), "the echo goes on");
        }
        times.push(began.elapsed());
    }
    drop(here);
    echo.join().expect("no panic");
    p50(times)
}

/// Thousands of messages a second, one at a time.
pub(super) fn rate(count: usize) -> f64 {
    1e3 / round_trip(1, count)
}

/// MiB a second of a stream in one direction, until the reader has said that all is there.
pub(super) fn bandwidth(count: usize) -> f64 {
    let [mut here, mut there] = connected(1);
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; LARGE];
        for _ in 0..count {
            assert!(there.read(0, &mut bytes), "all of it");
        }
        there.write(0, &[1]);
        // Until the writer has read that.
        there.read(0, &mut [0]);
    });
    let bytes = vec![7; LARGE];
    let began = now();
    for _ in 0..count {
        here.write(0, &bytes);
    }
    assert!(here.read(0, &mut [0]), "the reader's word");
    let seconds = began.elapsed().as_secs_f64();
    drop(here);
    reader.join().expect("no panic");
    (count * LARGE) as f64 / f64::from(1 << 20) / seconds
}
