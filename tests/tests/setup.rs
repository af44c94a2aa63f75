//! Session setup within what the two sides agreed to: frame sizes and depths.

use xio_proto::{
    CommandError, Config, ConnectOptions, ConnectionId, Event, Length, Reason, SessionId,
    SessionOpen,
};
use xio_tests::pair::{Pair, SERVER};

/// Two sides, of which one takes small frames only.
fn pair(small: u8) -> Pair {
    let config = |i| {
        let mut config = Config::new(i, 700, 64);
        if i == small {
            config.buffer_size = 512;
            config.inline_data_max = 256;
        }
        config
    };
    let counts = Pair::counts(&config(0));
    let mut pair = Pair::rdma(config, &counts);
    pair.listen(50);
    pair
}

fn dial(pair: &mut Pair, user: u64, private: &[u8]) -> Result<ConnectionId, CommandError> {
    let side = &mut pair.sides[0];
    let uri = "rdma://10.0.0.2:7000/res";
    let open = SessionOpen { uri, private };
    let (peer, options) = (SERVER.parse().unwrap(), ConnectOptions::new(user));
    let endpoint = &mut side.endpoint;
    endpoint.connect(
        pair.now,
        side.transport,
        peer,
        &open,
        &options,
        &mut side.slots,
    )
}

fn asked(pair: &mut Pair) -> SessionId {
    pair.run();
    let event = pair.sides[1].events.pop_front();
    let Some(Event::SessionRequest { session, .. }) = event else {
        panic!("{event:?}")
    };
    session
}

/// The reason with which a connection failed, after which it is closed.
fn failed(pair: &mut Pair, user: u64) -> Reason {
    pair.run();
    let closed = |event: &Event| matches!(event, Event::Closed { .. });
    while !pair.sides[0].events.iter().any(closed) {
        assert!(pair.advance(), "never closed");
    }
    let events = &mut pair.sides[0].events;
    events.retain(|event| !matches!(event, Event::SessionClosed { .. } | Event::Portals { .. }));
    let (failed, closed) = (events.pop_front(), events.pop_front());
    let Some(Event::ConnectFailed {
        user: u, reason, ..
    }) = failed
    else {
        panic!("{failed:?}")
    };
    assert_eq!(u, user);
    assert!(
        matches!(closed, Some(Event::Closed { user: u, .. }) if u == user),
        "{closed:?}"
    );
    reason
}

/// 28 bytes of lengths and depths, and the URI.
const BESIDE: u32 = 28 + 24;

#[test]
fn a_setup_longer_than_the_server_s_frame_fails_with_its_length() {
    let mut pair = pair(1);
    let free = pair.sides[0].endpoint.free_rows();
    let too_much = [7; 400];
    dial(&mut pair, 60, &too_much).unwrap();
    let (len, max) = (BESIDE + 400, 412);
    assert_eq!(failed(&mut pair, 60), Reason::SetupTooLong { len, max });
    assert!(
        pair.sides[1].events.is_empty(),
        "nothing of it was sent: {:?}",
        pair.sides[1].events
    );
    // The transport connection is kept, so the next one learns it at once; what fits goes.
    let refused = dial(&mut pair, 61, &too_much);
    let (what, len, max) = (Length::Setup, len.into(), max.into());
    assert_eq!(refused, Err(CommandError::TooLong { what, len, max }));
    let fits = [7; 412 - BESIDE as usize];
    let client = dial(&mut pair, 62, &fits).unwrap();
    let session = asked(&mut pair);
    assert_eq!(pair.sides[0].endpoint.info(client).unwrap().frame_max, 512);
    let side = &mut pair.sides[1];
    side.endpoint
        .reject(pair.now, session, 9, &[], &mut side.slots)
        .unwrap();
    assert_eq!(failed(&mut pair, 62), Reason::Rejected(9));
    while pair.advance() {}
    assert_eq!(pair.sides[0].endpoint.free_rows(), free);
}

#[test]
fn an_answer_longer_than_the_client_s_frame_is_refused_to_the_server() {
    let mut pair = pair(0);
    dial(&mut pair, 60, b"").unwrap();
    let session = asked(&mut pair);
    let side = &mut pair.sides[1];
    let (now, what, max) = (pair.now, Length::Setup, 412);
    let long = [3; 500];
    let accepted = side
        .endpoint
        .accept(now, session, 70, &[], &long, &mut side.slots);
    let len = 30 + 500;
    assert_eq!(
        accepted,
        Err(CommandError::TooLong { what, len, max }),
        "accept"
    );
    let portals: [&[u8]; 3] = [&[b'x'; 200]; 3];
    let redirected = side
        .endpoint
        .redirect(now, session, &portals, &mut side.slots);
    let len = 10 + 3 * 202;
    assert_eq!(
        redirected,
        Err(CommandError::TooLong { what, len, max }),
        "redirect"
    );
    let rejected = side
        .endpoint
        .reject(now, session, 1, &long, &mut side.slots);
    let len = 12 + 500;
    assert_eq!(
        rejected,
        Err(CommandError::TooLong { what, len, max }),
        "reject"
    );
    // None of them changed anything.
    side.endpoint
        .accept(now, session, 70, &[], &[3; 382], &mut side.slots)
        .unwrap();
    pair.run();
    let event = pair.sides[0].events.pop_front();
    let Some(Event::Established { private, .. }) = event else {
        panic!("{event:?}")
    };
    assert_eq!(pair.sides[0].bytes(private), [3; 382]);
}

#[test]
fn a_redirection_to_a_uri_that_does_not_fit_fails_with_its_length() {
    let mut pair = pair(2);
    let private = [7; 3840 - BESIDE as usize];
    dial(&mut pair, 60, &private).unwrap();
    let session = asked(&mut pair);
    let side = &mut pair.sides[1];
    let portals: [&[u8]; 1] = [b"rdma://10.0.0.2:7000/elsewhere"];
    side.endpoint
        .redirect(pair.now, session, &portals, &mut side.slots)
        .unwrap();
    let (len, max) = (3840 + 6, 3840);
    assert_eq!(failed(&mut pair, 60), Reason::SetupTooLong { len, max });
}

#[test]
fn depths_of_the_peer_are_bounded() {
    let mut pair = pair(2);
    // The server's answer says that its queues are as deep as the field goes.
    pair.tamper = Some(|i, frame| {
        if i == 1 && frame[4..8] == [0, 0, 0, 0x84] {
            frame[30..34].fill(0xff);
        }
    });
    let client = dial(&mut pair, 60, b"").unwrap();
    let session = asked(&mut pair);
    let side = &mut pair.sides[1];
    side.endpoint
        .accept(pair.now, session, 70, &[], b"", &mut side.slots)
        .unwrap();
    pair.run();
    let info = pair.sides[0].endpoint.info(client).unwrap();
    assert_eq!((info.sq_depth, info.rq_depth), (256, 256));
    assert_eq!(info.state, "Online");
}

#[test]
fn a_client_s_depth_is_not_echoed_beyond_what_a_queue_pair_holds() {
    let mut pair = pair(2);
    pair.tamper = Some(|i, frame| {
        if i == 0 && frame[4..8] == [0, 0, 0, 0x82] {
            frame[26..28].fill(0xff);
        }
    });
    dial(&mut pair, 60, b"").unwrap();
    pair.run();
    let answer = &pair.sides[1].sent[0];
    assert_eq!(answer[4..8], [0, 0, 0, 0x84]);
    assert_eq!(answer[30..32], [1, 0], "send depth in the answer");
}
