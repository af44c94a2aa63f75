//! Hostile peers and careless users cannot make an endpoint panic or lose a row.

/// A small generator: the same bytes on every machine.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn nothing_a_peer_says_breaks_an_endpoint() {
    let (mut frames, mut messages) = (0, 0);
    for seed in 1..=3000 {
        let (f, m) = xio_tests::hostile::run(&bytes(seed, 3000));
        frames += f;
        messages += m;
    }
    println!("{frames} frames, {messages} messages taken");
    // A generator whose frames are all refused at once would prove nothing.
    assert!(
        messages > 3000,
        "only {messages} of {frames} frames were messages"
    );
}
