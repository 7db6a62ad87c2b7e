//! One suite for the devices of every provider of gdr-rdma: what a program may rely on wherever its queue pairs are.
//! [`conformance!`] makes a test from each function of the suite, for the devices of one [`Bench`].
//!
//! The suite, and other tests of these devices, are written with [`Side`]. A failure panics.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    missing_docs,
    reason = "tests, whose names are sentences; a failure is a panic"
)]

mod bench;
pub mod connections;
pub mod failures;
pub mod operations;
pub mod ownership;
mod pattern;
pub mod posting;
mod side;

pub use bench::Bench;
pub use pattern::{bytes, fill, pattern};
pub use side::{FIRST, SECOND, Side, V6, connect, soft, soft_with, soon, wait_until};

/// Makes a test from each function of the suite. `run` calls the function that it is given with one or more benches.
#[macro_export]
macro_rules! conformance {
    ($(#[$attribute:meta])* $run:path) => {
        $crate::conformance! { each: [$(#[$attribute])*] $run,
            operations {
                written_bytes_arrive_and_no_others_change
                read_bytes_arrive
                a_read_is_scattered_over_its_segments
                messages_fill_receives_in_order_with_their_immediates
                a_write_with_an_immediate_consumes_a_receive_and_reports_its_length
                atomics_return_the_previous_value_and_change_it
                inline_bytes_need_no_region_and_are_copied_when_posted
                only_signalled_requests_complete_and_retire_those_before_them
                a_fenced_request_sends_the_bytes_of_an_earlier_read
                sixty_requests_are_outstanding_at_once
                a_program_that_polls_memory_needs_no_completion
            }
            connections {
                both_sides_write_at_once_and_every_path_mtu_works
                a_device_connects_to_itself
                many_queue_pairs_of_two_threads_share_a_device
                several_threads_post_to_one_queue_pair
            }
            posting {
                an_iterator_may_use_the_device_that_it_posts_to
                a_list_is_posted_up_to_the_first_request_that_is_refused
                an_endless_list_is_refused_when_the_queue_is_full
                a_list_that_is_refused_in_part_keeps_the_regions_of_what_was_posted
                completions_are_taken_several_at_a_time_in_order
                a_signalled_request_behind_unsignalled_ones_completes_under_its_own_id
                a_prepared_request_is_posted_as_often_as_wanted_and_keeps_its_memory
                posting_before_connecting_and_beyond_the_queue_is_refused
            }
            failures {
                a_wrong_key_is_refused_and_places_nothing
                a_range_beyond_the_region_is_refused_and_places_nothing
                what_a_region_does_not_permit_is_refused
                memory_that_only_the_peer_may_write_is_refused
                a_region_of_another_protection_domain_is_refused_like_an_unknown_key
                a_read_into_memory_without_local_write_fails_locally
                requests_after_a_failed_one_are_flushed
                a_message_longer_than_its_receive_fails_on_both_sides
                a_peer_without_receives_exhausts_the_retries
                a_receive_posted_late_still_gets_the_message
                a_silent_peer_exhausts_the_retries_and_later_requests_are_flushed
                an_error_flushes_what_is_posted
                every_wait_ends_at_its_deadline
            }
            ownership {
                a_posted_region_outlives_its_handle_until_the_request_completes
                a_key_is_invalid_after_its_region_is_dropped
                a_waiting_thread_is_woken_by_an_error
                everything_may_be_dropped_in_any_order_while_bytes_move
            }
        }
    };
    (each: $attributes:tt $run:path, $($module:ident { $($name:ident)* })*) => {$($(
        $crate::conformance! { one: $attributes $run, $module $name }
    )*)*};
    (one: [$($attribute:tt)*] $run:path, $module:ident $name:ident) => {
        #[test]
        $($attribute)*
        fn $name() {
            $run($crate::$module::$name);
        }
    };
}
