//! Bytes to typed frames and back, in both dialects.
//!
//! Everything here is a pure function over slices. Parsers borrow from the bytes they are given
//! and refuse what a correct peer cannot have sent, with the exact reason; they are lenient only
//! where real peers leave bytes undefined, and each such place says so. Encoders write zeros into
//! undefined fields and fail only on errors of their caller.
//!
//! A numbered frame is handled *assembled*: start, session header, transport header, segment or
//! length list, application header, padding, inline data, in one slice, from whichever sockets
//! the parts came. On a single stream and on RDMA it arrives that way; for a pair of sockets
//! [`stream_plan`] says how many bytes of the second one complete the frame.

mod control;
mod error;
mod extension;
mod follow;
mod frame;
mod headers;
mod inline;
mod kind;
pub mod layout;
mod request;
mod response;
mod session;
mod setup;
pub mod status;
mod stream;
#[cfg(test)]
mod tests;

pub use control::{Cancel, CreditNop, ReadAck};
pub use error::{Violation, What};
pub(crate) use extension::mix;
pub use extension::{
    EXTENSION_VERSION, Extensions, Introduction, Race, Resume, Role, confirm_word, is_offer,
    offer_check, offer_word, wire_identity,
};
pub use follow::{Cut, Follower, Next, find_frame};
pub use frame::{
    Bounds, CANCEL_LEN, Op, SETUP_PAYLOAD_MAX, SessionFields, SessionFlags, Sge, Sges, TLV_LEN,
    TransportFlags, peek_kind,
};
pub(crate) use frame::{WAIT_MAX, put_wait, wait_of};
pub(crate) use frame::{message_kind, message_len};
pub(crate) use inline::{
    Headers, InlineRequest, InlineResponse, Limits, OnRdma, OnStream, PlainRequest, PlainResponse,
};
pub use kind::{Dialect, Framing, Kind, MessageType};
pub use request::{Request, RequestFields, encode_request, request_head_len};
pub use response::{
    Lengths, Response, ResponseFields, ResponseList, encode_response, response_head_len,
};
pub use session::{
    PortalIter, Portals, SessionSetupRequest, SessionSetupResponse, TooLong, portals,
};
pub use setup::{
    BUFFER_SIZE_MIN, NEXUS_RECONNECT, NEXUS_VERSION, NexusSetupRequest, NexusSetupResponse,
    RkeyTable, SetupParams,
};
pub use stream::{ConnectMessage, SocketKind, StreamPlan, control_len, stream_plan};
pub(crate) use stream::{plain_rest, stream_rest};
