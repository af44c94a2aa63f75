//! Each check is broken once.

use super::*;

fn ledger() -> (Ledger, u64) {
    let mut ledger = Ledger::new();
    assert_eq!(ledger.number_connection(), 0);
    for side in [0, 1] {
        ledger.take(0, Fact::Opened { side });
        ledger.take(0, Fact::Established { side });
    }
    let message = send(&mut ledger, Class::Request);
    (ledger, message)
}

fn send(ledger: &mut Ledger, class: Class) -> u64 {
    let message = ledger.number_message(0, class);
    let taken = Fact::Taken {
        message,
        digest: message + 100,
        buffers: true,
        len: 100,
        room: 50,
        receipt: class == Class::Receipted,
        deadline: Some(20),
    };
    ledger.take(1, taken);
    message
}

fn deliver(message: u64) -> Fact {
    Fact::Delivered {
        life: 1,
        message,
        side: 1,
        digest: message + 100,
    }
}

fn end(message: u64, outcome: Outcome) -> Fact {
    Fact::Ended {
        message,
        outcome,
        returned: true,
        clock: 5,
    }
}

fn close(ledger: &mut Ledger) {
    ledger.take(
        9,
        Fact::Closed {
            side: 0,
            badly: false,
        },
    );
    ledger.take(
        9,
        Fact::Closed {
            side: 1,
            badly: false,
        },
    );
    ledger.finish(10);
}

fn checks(ledger: &Ledger) -> Vec<Check> {
    ledger
        .breaches()
        .iter()
        .map(|breach| breach.check)
        .collect()
}

#[test]
fn a_good_run_has_no_breach() {
    let (mut ledger, message) = ledger();
    ledger.take(2, deliver(message));
    ledger.take(3, end(message, Outcome::Answered));
    close(&mut ledger);
    assert_eq!(checks(&ledger), []);
}

#[test]
fn outcomes_come_once() {
    let (mut ledger, message) = ledger();
    ledger.take(3, end(message, Outcome::Unknown));
    ledger.take(3, end(message, Outcome::Unknown));
    assert_eq!(checks(&ledger), [Check::ExactlyOneOutcome]);

    let (mut ledger, _) = self::ledger();
    close(&mut ledger);
    assert_eq!(checks(&ledger), [Check::ExactlyOneOutcome]);
}

#[test]
fn connections_end_once_and_last() {
    let (mut ledger, message) = ledger();
    ledger.take(
        2,
        Fact::Closed {
            side: 0,
            badly: false,
        },
    );
    ledger.take(3, end(message, Outcome::Unknown));
    assert_eq!(checks(&ledger), [Check::ExactlyOneEnd]);
    ledger.take(
        3,
        Fact::Closed {
            side: 0,
            badly: false,
        },
    );
    ledger.finish(4);
    let end = Check::ExactlyOneEnd;
    assert_eq!(
        checks(&ledger),
        [end, end, end],
        "closed twice, and side 1 never"
    );
}

#[test]
fn what_is_not_idempotent_comes_once_in_all_lives() {
    for idempotent in [false, true] {
        let (mut ledger, message) = ledger();
        if idempotent {
            ledger.take(1, Fact::Idempotent { message });
        }
        ledger.take(2, deliver(message));
        ledger.take(3, Fact::Lost { side: 0 });
        ledger.take(4, Fact::Opened { side: 1 });
        let again = Fact::Delivered {
            message,
            side: 1,
            life: 2,
            digest: message + 100,
        };
        ledger.take(5, again);
        let expected: &[Check] = match idempotent {
            true => &[],
            false => &[Check::AtMostOnce],
        };
        assert_eq!(checks(&ledger), expected);
    }
}

#[test]
fn delivery_is_once_in_order_whole_and_at_the_right_place() {
    let (mut ledger, first) = ledger();
    let second = send(&mut ledger, Class::OneWay);
    ledger.take(2, deliver(second));
    ledger.take(2, deliver(first));
    assert_eq!(checks(&ledger), [Check::Order]);
    ledger.take(2, deliver(first));
    assert!(checks(&ledger).contains(&Check::Delivery));
    let third = send(&mut ledger, Class::OneWay);
    let wrong = Fact::Delivered {
        life: 1,
        message: third,
        side: 1,
        digest: 1,
    };
    ledger.take(2, wrong);
    assert_eq!(checks(&ledger).last(), Some(&Check::Bytes));
    let away = Fact::Delivered {
        life: 1,
        message: third,
        side: 0,
        digest: 1,
    };
    ledger.take(2, away);
    assert_eq!(checks(&ledger).last(), Some(&Check::Delivery));
    ledger.take(2, deliver(77));
    assert_eq!(checks(&ledger).last(), Some(&Check::Delivery));
}

#[test]
fn sender_and_receiver_agree() {
    let (mut ledger, message) = ledger();
    ledger.take(2, deliver(message));
    ledger.take(3, end(message, Outcome::NeverSent));
    assert_eq!(checks(&ledger), [Check::Agreement]);

    let (mut ledger, lost) = self::ledger();
    let next = send(&mut ledger, Class::OneWay);
    ledger.take(2, deliver(next));
    ledger.take(3, end(next, Outcome::Sent));
    ledger.take(3, end(lost, Outcome::Answered));
    close(&mut ledger);
    assert_eq!(checks(&ledger), [Check::Agreement]);

    let (mut ledger, _) = self::ledger();
    let receipted = send(&mut ledger, Class::Receipted);
    ledger.take(3, end(receipted, Outcome::Receipt));
    assert_eq!(checks(&ledger), [Check::Agreement]);
}

fn receipt(ledger: &mut Ledger, class: Class, code: u32, outcome: Outcome) -> Vec<Check> {
    let message = send(ledger, class);
    ledger.messages[message as usize].receipt = true;
    let next = send(ledger, Class::OneWay);
    ledger.take(2, deliver(next));
    ledger.take(3, end(next, Outcome::Sent));
    ledger.take(3, Fact::ReceiptCame { message, code });
    ledger.take(3, end(message, outcome));
    ledger.finish(4);
    let breaches = ledger.breaches().iter();
    let its_own = breaches.filter(|breach| breach.text.contains(&format!("message {message}")));
    its_own.map(|breach| breach.check).collect()
}

/// A message that its receiver's user was not asked about in time.
#[test]
fn receipts_of_what_nobody_got_must_say_so() {
    let one_way = |code| receipt(&mut ledger().0, Class::Receipted, code, Outcome::Receipt);
    assert_eq!(one_way(TIMEOUT), [], "it says so itself");
    assert_eq!(one_way(0), [Check::Agreement, Check::Agreement]);
    let request = |outcome| receipt(&mut ledger().0, Class::Request, 0, outcome);
    let heard = |outcome| request(outcome).contains(&Check::Agreement);
    assert!(
        heard(Outcome::Answered),
        "the answer says so, or nothing does"
    );
    assert!(heard(Outcome::Unknown));
}

#[test]
fn buffers_come_back_once_and_not_early() {
    let (mut ledger, message) = ledger();
    ledger.take(2, Fact::Returned { message });
    assert_eq!(checks(&ledger), [Check::Buffers]);

    let (mut ledger, message) = self::ledger();
    let held = Fact::Ended {
        message,
        outcome: Outcome::TimedOut,
        returned: false,
        clock: 5,
    };
    ledger.take(2, held);
    close(&mut ledger);
    assert_eq!(checks(&ledger), [Check::Buffers]);
}

#[test]
fn digests_differ() {
    let digest = |bytes: &[u8]| {
        let mut digest = Digest::new();
        digest.update(bytes);
        digest.value()
    };
    assert_ne!(digest(b"abc"), digest(b"abd"));
    assert_ne!(digest(b"abc"), digest(b"abc\0"));
    assert_ne!(digest(&[0; 8]), digest(&[0; 16]));
    let mut parts = Digest::new();
    for part in [&b"123"[..], b"", b"456789abcdefgh", b"i"] {
        parts.update(part);
    }
    assert_eq!(parts.value(), digest(b"123456789abcdefghi"));
}
