//! Bytes that the recorded peers left undefined.

use xio_tests::golden::{Dialect, Kind};

/// Where such bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// At an offset of the frame, so many bytes.
    Offset(usize, usize),
    /// Between the application header and the data.
    Padding,
}

/// One undefined field of one kind of frame.
#[derive(Debug)]
pub(crate) struct Row {
    /// The dialect.
    pub(crate) dialect: Dialect,
    /// The kind of frame.
    pub(crate) kind: Kind,
    /// Its place.
    pub(crate) at: At,
    /// What is there.
    pub(crate) name: &'static str,
}

const fn row(dialect: Dialect, kind: Kind, at: At, name: &'static str) -> Row {
    Row {
        dialect,
        kind,
        at,
        name,
    }
}

/// Every field in which a recorded byte differs from the zero that the codec writes: padding,
/// fields without a use, and in control frames, whose session header comes from recycled memory,
/// the serial number. What else a sender may leave undefined was zero whenever it was recorded,
/// and is compared like any other byte.
#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    row(Dialect::Rdma, Kind::SessionSetupRsp, At::Offset(71, 1), "rdma_rsp.pad"),
    row(Dialect::Rdma, Kind::MsgReq, At::Offset(84, 4), "rdma_req.remain_data_len"),
    row(Dialect::Rdma, Kind::MsgReq, At::Padding, "ulp_pad"),
    row(Dialect::Rdma, Kind::MsgRsp, At::Offset(71, 1), "rdma_rsp.pad"),
    row(Dialect::Rdma, Kind::MsgRsp, At::Offset(72, 2), "rdma_rsp.pad1"),
    row(Dialect::Rdma, Kind::MsgRsp, At::Padding, "ulp_pad"),
    row(Dialect::Rdma, Kind::OneWayReq, At::Offset(84, 4), "rdma_req.remain_data_len"),
    row(Dialect::Rdma, Kind::OneWayRsp, At::Offset(71, 1), "rdma_rsp.pad"),
    row(Dialect::Rdma, Kind::AckReq, At::Offset(84, 4), "rdma_req.remain_data_len"),
    row(Dialect::Rdma, Kind::KeepaliveReq, At::Offset(84, 4), "rdma_req.remain_data_len"),
    row(Dialect::Rdma, Kind::KeepaliveRsp, At::Offset(71, 1), "rdma_rsp.pad"),
    row(Dialect::Rdma, Kind::FinReq, At::Offset(24, 8), "ses.serial_num"),
    row(Dialect::Rdma, Kind::FinReq, At::Offset(84, 4), "rdma_req.remain_data_len"),
    row(Dialect::Rdma, Kind::FinRsp, At::Offset(24, 8), "ses.serial_num"),
    row(Dialect::Rdma, Kind::FinRsp, At::Offset(71, 1), "rdma_rsp.pad"),
    row(Dialect::Tcp, Kind::MsgReq, At::Padding, "ulp_pad"),
    row(Dialect::Tcp, Kind::MsgRsp, At::Offset(73, 1), "tcp_rsp.pad1"),
    row(Dialect::Tcp, Kind::MsgRsp, At::Padding, "ulp_pad"),
    row(Dialect::Tcp, Kind::FinReq, At::Offset(24, 8), "ses.serial_num"),
];

impl Row {
    /// Whether the row covers a byte of a frame with this padding.
    pub(crate) fn covers(&self, offset: usize, padding: &std::ops::Range<usize>) -> bool {
        match self.at {
            At::Offset(at, len) => (at..at + len).contains(&offset),
            At::Padding => padding.contains(&offset),
        }
    }
}
