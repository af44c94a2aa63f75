//! The examples serve clients.

mod common;
#[path = "../examples/mio_echo.rs"]
mod mio_echo;
#[path = "../examples/tokio_echo.rs"]
mod tokio_echo;

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{connect, driver, request};
use xio_proto::Event;
use xio_tcp::{Driver, Options};

/// Three clients, one after the other, a thousand requests each.
fn three_clients(at: SocketAddr, mut between: impl FnMut()) {
    for dual in [false, true, true] {
        let mut client = driver(1, Options::default());
        let connection = connect(&mut client, at, dual);
        let mut answers = 0;
        'client: loop {
            while let Some(event) = client.next_event() {
                match event {
                    Event::Established { .. } => {
                        request(&mut client, connection, b"0", 0);
                    }
                    Event::Response { task, data, .. } => {
                        let want = answers.to_string();
                        client.with_data(data, |piece| assert_eq!(piece, want.as_bytes()));
                        client.release(task).expect("ours");
                        answers += 1;
                        if answers == 1000 {
                            client.close(connection).expect("open");
                        } else {
                            let next = answers.to_string();
                            request(&mut client, connection, next.as_bytes(), 0);
                        }
                    }
                    Event::Closed { .. } => break 'client,
                    other => panic!("{other:?}"),
                }
            }
            client.poll(Some(Duration::from_secs(10))).expect("polls");
        }
        between();
    }
}

#[test]
fn a_bare_mio_loop_serves_three_things() {
    let (tell, hear) = channel();
    let server = std::thread::spawn(move || {
        let address = "127.0.0.1:0".parse().expect("an address");
        let told = |xio, clock| tell.send((xio, clock)).expect("awaited");
        mio_echo::serve(address, 3, told).expect("serves")
    });
    let (xio, clock) = hear.recv().expect("told");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let limit = Some(Duration::from_secs(10));
    socket.set_read_timeout(limit).expect("a timeout");
    let mut rounds = 0;
    three_clients(xio, || {
        rounds += 1;
        if rounds == 3 {
            // The server leaves with its last client.
            return;
        }
        socket.send_to(b"?", clock).expect("sends");
        let (len, _) = socket.recv_from(&mut [0; 64]).expect("an answer");
        assert!(len > 0);
    });
    let done = server.join().expect("serves");

    assert!(done.asked == 2 && done.ticks > 0, "{done:?}");
}

#[test]
fn a_task_of_tokio_serves() {
    let (tell, hear) = channel();
    let server = std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        let address = "127.0.0.1:0".parse().expect("an address");
        let told = |xio| tell.send(xio).expect("awaited");
        runtime.block_on(async {
            tokio_echo::serve(address, 3, told).await.expect("serves");
        });
    });
    three_clients(hear.recv().expect("told"), || {});
    server.join().expect("serves");
}
