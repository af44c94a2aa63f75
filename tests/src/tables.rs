//! Tables of an endpoint on the heap, freed with it.

xio_proto::boxed_storage! {
    /// Every table as a boxed slice.
    pub struct BoxedTables;
}
