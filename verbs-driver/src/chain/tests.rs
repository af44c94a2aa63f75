//! A function table of our own stands in for the device: it writes down what it is given, and
//! refuses the request that it is told to.

use std::cell::RefCell;

use super::*;

/// A request as the device saw it: id, opcode, flags, segments, remote address and key.
type Seen = (u64, u32, u32, Vec<(u64, u32, u32)>, u64, u32);

thread_local! {
    static SEEN: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
    static REFUSED: RefCell<Option<u64>> = const { RefCell::new(None) };
}

fn is_refused(wr: u64) -> bool {
    REFUSED.with_borrow(|refused| *refused == Some(wr))
}

/// # Safety
/// As `sg_list` of a request.
unsafe fn segments(list: *const sys::ibv_sge, count: i32) -> Vec<(u64, u32, u32)> {
    // SAFETY: of the caller.
    let list = unsafe { core::slice::from_raw_parts(list, count as usize) };
    list.iter().map(|s| (s.addr, s.length, s.lkey)).collect()
}

unsafe extern "C" fn post_send(
    _: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> i32 {
    // SAFETY: a chain that ends in null, as the function is defined.
    while let Some(request) = unsafe { wr.as_ref() } {
        if is_refused(request.wr_id) {
            // SAFETY: a place for the answer, as the function is defined.
            unsafe { *bad = wr };
            return libc::ENOMEM;
        }
        // SAFETY: so many segments are there; the union is zeros, or this form of it was written.
        let (list, rdma) = unsafe { (segments(request.sg_list, request.num_sge), request.wr.rdma) };
        let (opcode, flags) = (request.opcode, request.send_flags);
        let seen = (
            request.wr_id,
            opcode,
            flags,
            list,
            rdma.remote_addr,
            rdma.rkey,
        );
        SEEN.with_borrow_mut(|all| all.push(seen));
        wr = request.next;
    }
    0
}

unsafe extern "C" fn post_recv(
    _: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> i32 {
    // SAFETY: as in `post_send`.
    while let Some(request) = unsafe { wr.as_ref() } {
        if is_refused(request.wr_id) {
            // SAFETY: as in `post_send`.
            unsafe { *bad = wr };
            return libc::EINVAL;
        }
        // SAFETY: as in `post_send`.
        let list = unsafe { segments(request.sg_list, request.num_sge) };
        SEEN.with_borrow_mut(|all| all.push((request.wr_id, 0, 0, list, 0, 0)));
        wr = request.next;
    }
    0
}

/// Runs with a queue pair of the table's, and returns what it saw.
fn with_queue_pair<R>(
    refused: Option<u64>,
    run: impl FnOnce(*mut sys::ibv_qp) -> R,
) -> (R, Vec<Seen>) {
    // SAFETY: plain numbers and pointers, for which 0 is a value.
    let (mut context, mut qp): (Box<sys::ibv_context>, Box<sys::ibv_qp>) =
        unsafe { (Box::new(core::mem::zeroed()), Box::new(core::mem::zeroed())) };
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    qp.context = &raw mut *context;
    REFUSED.set(refused);
    let done = run(&raw mut *qp);
    (done, SEEN.take())
}

fn piece(addr: u64, length: u32) -> sys::ibv_sge {
    sys::ibv_sge {
        addr,
        length,
        lkey: 9,
    }
}

/// A message of two pieces, a READ and a WRITE; returns whether each went inline.
fn three(chain: &mut SendChain) -> [bool; 3] {
    chain.segment(piece(0x100, 40));
    chain.segment(piece(0x200, 60));
    let send = chain.request(1, Verb::Send, sys::flag::SIGNALED, 100);
    chain.segment(piece(0x300, 8));
    let read = chain.request(
        2,
        Verb::Read {
            remote: 0x7000,
            rkey: 5,
        },
        0,
        100,
    );
    chain.segment(piece(0x400, 8));
    let write = chain.request(
        3,
        Verb::Write {
            remote: 0x8000,
            rkey: 6,
        },
        sys::flag::FENCE,
        100,
    );
    [send, read, write]
}

#[test]
fn chain_arrives_in_order_and_whole() {
    let mut chain = SendChain::new(4);
    // Twice, since posting makes room for the next.
    for _ in 0..2 {
        assert_eq!(three(&mut chain), [true, false, false]);
        // SAFETY: the table follows no address.
        let (posted, seen) = with_queue_pair(None, |qp| unsafe { chain.post(qp) });
        assert_eq!(posted, Ok(()));
        let inline = sys::flag::SIGNALED | sys::flag::INLINE;
        let expected: Vec<Seen> = vec![
            (1, 2, inline, vec![(0x100, 40, 9), (0x200, 60, 9)], 0, 0),
            (2, 4, 0, vec![(0x300, 8, 9)], 0x7000, 5),
            (3, 0, sys::flag::FENCE, vec![(0x400, 8, 9)], 0x8000, 6),
        ];
        assert_eq!(seen, expected);
        assert!(chain.is_empty());
    }
}

#[test]
fn first_request_that_is_refused_is_named() {
    for refused in 1..=3 {
        let mut chain = SendChain::new(4);
        three(&mut chain);
        // SAFETY: as above.
        let (posted, seen) = with_queue_pair(Some(refused), |qp| unsafe { chain.post(qp) });
        assert_eq!(posted, Err((refused, libc::ENOMEM)));
        assert_eq!(seen.len() as u64, refused - 1);
        assert!(chain.is_empty());
    }
}

#[test]
fn one_byte_too_many_is_not_inline() {
    let mut chain = SendChain::new(1);
    chain.segment(piece(0x100, 101));
    assert!(!chain.request(1, Verb::Send, 0, 100));
    chain.segment(piece(0x100, 100));
    assert!(chain.request(2, Verb::Send, 0, 100));
}

#[test]
fn chain_is_full_when_it_says_so() {
    let mut chain = SendChain::new(1);
    for wr in 0.. {
        if chain.is_full() {
            break;
        }
        chain.segment(piece(wr, 1));
        chain.request(wr, Verb::Send, 0, 0);
    }
    // SAFETY: as above.
    let (posted, seen) = with_queue_pair(None, |qp| unsafe { chain.post(qp) });
    assert_eq!((posted, seen.len()), (Ok(()), CHAIN));
    assert!(
        seen.iter()
            .enumerate()
            .all(|(at, seen)| seen.0 == at as u64)
    );
}

#[test]
fn receives_are_chained_too() {
    let fill = |chain: &mut ReceiveChain| {
        let mut wr = 0;
        while !chain.is_full() {
            chain.receive(wr, piece(wr << 16, 4096));
            wr += 1;
        }
    };
    let mut chain = ReceiveChain::new();
    fill(&mut chain);
    // SAFETY: as above.
    let (posted, seen) = with_queue_pair(None, |qp| unsafe { chain.post(qp) });
    assert_eq!((posted, seen.len()), (Ok(()), RECEIVES));
    assert_eq!(seen[3], (3, 0, 0, vec![(3 << 16, 4096, 9)], 0, 0));
    fill(&mut chain);
    // SAFETY: as above.
    let (posted, seen) = with_queue_pair(Some(7), |qp| unsafe { chain.post(qp) });
    assert_eq!((posted, seen.len()), (Err((7, libc::EINVAL)), 7));
    assert!(chain.is_empty());
}
