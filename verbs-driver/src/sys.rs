//! The bindings: the only file that names the crates of libibverbs and librdmacm.
//!
//! What is used is listed here one by one, so that it can be audited, and so that either crate
//! (`rdma-sys`, or `rdma-mummy-sys` with the feature `dlopen`) can stand behind it. Classic verbs
//! only. Not to be used, since one of the crates has them wrong: everything with `_ex` and the
//! rest of the extended operations (`verbs_get_ctx` never finds them), `ibv_query_port` (writes
//! part of the structure), `ibv_reg_mr` (knows no optional rights), `rdma_get_local_addr` and
//! `rdma_get_peer_addr` (make references to memory that C changes), and `ibv_event_type` as a Rust
//! enum (later versions have values that it has not).

#[cfg(not(any(feature = "link", feature = "dlopen")))]
compile_error!("choose a binding: feature `link` (default) or `dlopen`");

#[cfg(feature = "dlopen")]
use rdma_mummy_sys as binding;
#[cfg(all(feature = "link", not(feature = "dlopen")))]
use rdma_sys as binding;

#[cfg(test)]
use crate::fake as calls;
/// In unit tests a table of our own takes the place of the libraries.
#[cfg(not(test))]
use binding as calls;

// Structures, and functions that go through the table in a context.
pub(crate) use binding::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_poll_cq, ibv_port_attr, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_recv_wr,
    ibv_req_notify_cq, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr, ibv_wc, ibv_wr_opcode,
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};
// Functions of the libraries themselves.
pub(crate) use calls::{
    ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_create_comp_channel, ibv_create_cq,
    ibv_create_qp, ibv_create_srq, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, ibv_fork_init, ibv_get_async_event,
    ibv_get_cq_event, ibv_get_device_name, ibv_modify_qp, ibv_query_device, ibv_reg_mr_iova2,
    rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect, rdma_create_event_channel,
    rdma_create_id, rdma_create_qp, rdma_destroy_event_channel, rdma_destroy_id, rdma_destroy_qp,
    rdma_disconnect, rdma_free_devices, rdma_get_cm_event, rdma_get_devices, rdma_listen,
    rdma_reject, rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};
#[cfg(test)]
pub(crate) use {binding::ibv_device, calls::query_port};

/// `ibv_access_flags`.
pub(crate) mod access {
    /// The device may write it.
    pub(crate) const LOCAL_WRITE: u32 = 1;
    /// Peers may WRITE it.
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    /// Peers may READ it.
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
}

/// `ibv_send_flags`.
pub(crate) mod flag {
    /// After the READs before it.
    pub(crate) const FENCE: u32 = 1;
    /// A completion is wanted.
    pub(crate) const SIGNALED: u32 = 1 << 1;
    /// The data is copied when it is posted.
    pub(crate) const INLINE: u32 = 1 << 3;
}

/// `ibv_event_type`, as far as it means something here.
pub(crate) mod event {
    /// Events 1 to 3: a queue pair that went wrong.
    pub(crate) const QP_FATAL: u32 = 1;
    /// A request of the peer's that could not be understood.
    pub(crate) const QP_REQ_ERR: u32 = 2;
    /// A request of the peer's without the right to it.
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    /// The device is of no use any more.
    pub(crate) const DEVICE_FATAL: u32 = 8;
    /// The port went down.
    pub(crate) const PORT_ERR: u32 = 10;
    /// A queue pair in the error state has taken its last receive of a shared queue.
    pub(crate) const LAST_RECEIVE: u32 = 16;
    /// Whether its element is a queue pair.
    pub(crate) fn is_queue_pair(number: u32) -> bool {
        matches!(number, QP_FATAL..=7 | LAST_RECEIVE)
    }
}

/// `RDMA_OPTION_ID` and its options.
pub(crate) mod option {
    /// The level of options of ids.
    pub(crate) const ID: i32 = 0;
    /// Bind to an address that a connection of an earlier listener still has.
    pub(crate) const REUSE_ADDRESS: i32 = 1;
    /// An IPv6 listener takes no IPv4.
    pub(crate) const FAMILY_ONLY: i32 = 2;
}

/// `ibv_query_port`, whose compatible form fills only the beginning: the rest must be 0.
///
/// # Safety
/// `context` is open.
#[cfg(not(test))]
pub(crate) unsafe fn query_port(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, i32> {
    // SAFETY: plain numbers, for which 0 is a value.
    let mut attr: ibv_port_attr = unsafe { core::mem::zeroed() };
    #[cfg(feature = "dlopen")]
    // SAFETY: of the caller; the structure is ours and of the size that the function knows.
    let error = unsafe { binding::ibv_query_port(context, port, &raw mut attr) };
    #[cfg(not(feature = "dlopen"))]
    // SAFETY: of the caller; it fills the beginning of the structure, which is ours.
    let error = unsafe { binding::___ibv_query_port(context, port, &raw mut attr) };
    if error == 0 { Ok(attr) } else { Err(error) }
}

/// The kind of an event, as a number: the type in the structure is a Rust enum.
///
/// # Safety
/// `event` was filled by `ibv_get_async_event`.
pub(crate) unsafe fn event_number(event: *const ibv_async_event) -> u32 {
    // SAFETY: of the caller; the field is an enum of C, which is a 32-bit number.
    unsafe { (&raw const (*event).event_type).cast::<u32>().read() }
}

/// `errno`, as a positive number.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// What a function says that returns -1 and sets `errno`.
pub(crate) fn check(status: i32) -> Result<(), i32> {
    if status == 0 { Ok(()) } else { Err(errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that C has for them on 64-bit machines, with rdma-core 44.
    #[test]
    fn structures_have_the_sizes_of_c() {
        for (name, size, expected) in [
            ("ibv_wc", size_of::<ibv_wc>(), 48),
            ("ibv_send_wr", size_of::<ibv_send_wr>(), 128),
            ("ibv_recv_wr", size_of::<ibv_recv_wr>(), 32),
            ("ibv_sge", size_of::<ibv_sge>(), 16),
            ("ibv_qp_attr", size_of::<ibv_qp_attr>(), 144),
            ("ibv_qp_init_attr", size_of::<ibv_qp_init_attr>(), 64),
            ("ibv_srq_init_attr", size_of::<ibv_srq_init_attr>(), 24),
            ("ibv_context", size_of::<ibv_context>(), 328),
            ("ibv_device_attr", size_of::<ibv_device_attr>(), 232),
            ("ibv_async_event", size_of::<ibv_async_event>(), 16),
            ("rdma_cm_event", size_of::<rdma_cm_event>(), 80),
            ("rdma_conn_param", size_of::<rdma_conn_param>(), 24),
            ("rdma_cm_id", size_of::<rdma_cm_id>(), 416),
        ] {
            assert_eq!(size, expected, "{name}");
        }
    }
}
