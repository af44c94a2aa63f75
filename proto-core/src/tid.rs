//! Ids that travel on the wire: 32 bits with index and generation inside (PROTOCOL.md 4).

/// Index bits of a task or connection in a task id.
pub(crate) const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 11;
const CONTROL: u32 = 1 << 31;

/// Index bits of a session in a session id; then 8 bits generation and 6 bits endpoint number.
pub(crate) const SESSION_INDEX_BITS: u32 = 18;
const SESSION_GENERATION_BITS: u32 = 8;

const fn pack(index: u32, generation: u32) -> u32 {
    index | (generation & ((1 << GENERATION_BITS) - 1)) << INDEX_BITS
}

/// The id under which a message travels.
pub(crate) const fn of_task(index: u32, generation: u32) -> u32 {
    pack(index, generation)
}

/// The id of a connection's control requests (setup, HELLO, FIN, keepalive).
pub(crate) const fn of_connection(index: u32, generation: u32) -> u32 {
    CONTROL | pack(index, generation)
}

/// Index that a task id speaks of, when it is of that kind.
pub(crate) const fn index(tid: u32) -> u32 {
    tid & ((1 << INDEX_BITS) - 1)
}

pub(crate) const fn is_control(tid: u32) -> bool {
    tid & CONTROL != 0
}

/// Whether the id is of this generation.
pub(crate) const fn matches(tid: u32, generation: u32) -> bool {
    tid & !CONTROL == pack(index(tid), generation)
}

/// A session's id on the wire.
pub(crate) const fn of_session(endpoint: u8, index: u32, generation: u32) -> u32 {
    let generation = generation & ((1 << SESSION_GENERATION_BITS) - 1);
    (endpoint as u32) << (SESSION_INDEX_BITS + SESSION_GENERATION_BITS)
        | generation << SESSION_INDEX_BITS
        | index
}

/// Endpoint number and index in a session id.
pub(crate) const fn split_session(id: u32) -> (u8, u32) {
    let endpoint = (id >> (SESSION_INDEX_BITS + SESSION_GENERATION_BITS)) as u8;
    (endpoint, id & ((1 << SESSION_INDEX_BITS) - 1))
}
