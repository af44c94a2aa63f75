//! A session that goes on elsewhere, over streams.

use xio_proto::{ConnectOptions, Event, SessionOpen};
use xio_tests::pair::SERVER;
use xio_tests::stream_pair::Cut;

use super::tcp;

/// A client is sent to a portal, closes the connection when both sides have read so often, and
/// then everything is lost. Whether its user was given the answer's private data.
fn close_on_the_way(reads: usize) -> bool {
    let mut world = tcp(Cut::Whole);
    let free = world.sides[0].endpoint.free_rows();
    let side = &mut world.sides[0];
    let open = SessionOpen {
        uri: "tcp://10.0.0.2:7000/res",
        private: b"",
    };
    let (now, transport) = (world.now, side.transport);
    let address = SERVER.parse().unwrap();
    let options = ConnectOptions::new(60);
    let endpoint = &mut side.endpoint;
    let connection = endpoint
        .connect(now, transport, address, &open, &options, &mut side.slots)
        .unwrap();
    world.run();
    let asked = world.sides[1].events.pop_front();
    let Some(Event::SessionRequest { session, .. }) = asked else {
        panic!("{asked:?}")
    };
    world.reads = Some(reads);
    let side = &mut world.sides[1];
    let portals: [&[u8]; 1] = [b"tcp://10.0.0.2:7000"];
    let endpoint = &mut side.endpoint;
    endpoint
        .accept(now, session, 70, &portals, b"welcome", &mut side.slots)
        .unwrap();
    world.run();
    world.sides[0].endpoint.close(now, connection).unwrap();
    world.run();
    world.resume_with_loss(0);
    while world.advance() {}
    let events: Vec<_> = world.sides[0].events.drain(..).collect();
    let closed = |event: &&Event| matches!(event, Event::Closed { user: 60, .. });
    assert_eq!(events.iter().filter(closed).count(), 1, "{events:?}");
    let mut told = false;
    for event in &events {
        if let Event::Established { message, .. } | Event::ConnectFailed { message, .. } = event
            && let Some(message) = *message
        {
            world.sides[0].endpoint.release(message).unwrap();
            told = true;
        }
    }
    let left = world.sides[0].endpoint.free_rows();
    assert_eq!(left, free, "closed after {reads} reads: {events:?}");
    told
}

#[test]
fn private_data_of_an_answer_comes_back_wherever_its_connection_was_closed() {
    let told: Vec<_> = (0..16).map(close_on_the_way).collect();
    assert!(told.contains(&true) && told.contains(&false), "{told:?}");
}
