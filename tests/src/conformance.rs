//! What every driver must do, written once against [`Driver`](xio_proto::driver::Driver): each case is a function that is
//! given two endpoints over some wire, [`conformance_suite!`](crate::conformance_suite) makes a
//! test of each.

mod cases;
mod party;
mod trouble;

pub use cases::*;
pub use party::{Ask, Decide, Heard, Pair, Party, Pay};
pub use trouble::*;

/// A test for each case; `$make` gives a [`Pair`] each time it is called.
#[macro_export]
macro_rules! conformance_suite {
    ($make:expr) => {
        $crate::conformance_suite!($make;
            private_data_goes_both_ways,
            a_session_is_rejected_with_a_reason,
            a_session_is_redirected,
            nobody_listens_there,
            all_sizes_arrive_whole,
            the_largest_arrive_whole,
            large_data_goes_both_ways_at_once,
            one_way_messages_arrive_in_order,
            receipts_come_back,
            a_server_asks_its_client,
            many_messages_are_under_way,
            a_payload_is_refused,
            payloads_go_into_the_pool,
            a_deadline_passes,
            a_message_is_cancelled,
            a_client_closes,
            a_server_closes,
            both_close_at_once,
            a_connection_is_aborted,
            sessions_share_a_transport_connection,
            a_buffer_in_flight_cannot_be_reached,
            memory_of_others_is_not_taken,
        );
    };
    ($make:expr; $($case:ident),* $(,)?) => {$(
        #[test]
        fn $case() {
            $crate::conformance::$case(&mut $make);
        }
    )*};
}
