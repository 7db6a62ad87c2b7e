//! Compares the declarations with the installed header, using the C compiler.
//!
//! Any release is accepted: the test compares only what all releases share. The assertions in the
//! declarations compare the rest with the header that they were generated from.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use gdr_verbs_sys::*;

/// Generates C assertions that the fields have the same offsets and sizes.
macro_rules! places {
    ($source:ident, $($type:ident { $($field:ident)* })*) => {$($(
        assert_equal(
            &mut $source,
            concat!("offsetof(struct ", stringify!($type), ", ", stringify!($field), ")"),
            offset_of!($type, $field) as u64,
        );
    )*)*};
}

macro_rules! sizes {
    ($source:ident, $($type:ident)*) => {$(
        assert_equal(
            &mut $source,
            concat!("sizeof(struct ", stringify!($type), ")"),
            size_of::<$type>() as u64,
        );
    )*};
}

/// The extension grows at its beginning, so offsets count from its end.
macro_rules! places_from_the_end {
    ($source:ident, $($field:ident)*) => {$(
        assert_equal(
            &mut $source,
            concat!(
                "sizeof(struct verbs_context) - offsetof(struct verbs_context, ",
                stringify!($field),
                ")"
            ),
            (size_of::<verbs_context>() - offset_of!(verbs_context, $field)) as u64,
        );
    )*};
}

macro_rules! values {
    ($source:ident, $($type:ident::$value:ident)*) => {$(
        assert_equal(&mut $source, stringify!($value), $type::$value.0 as u64);
    )*};
}

fn assert_equal(source: &mut String, expression: &str, value: u64) {
    writeln!(
        source,
        "_Static_assert({expression} == {value}ull, \"{expression}\");"
    )
    .expect("writing to a string succeeds");
}

/// Returns whether the C compiler accepts the source, and its messages.
fn compile(source: &str) -> std::io::Result<(bool, String)> {
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = compiler.stdin.take() {
        input.write_all(source.as_bytes())?;
    }
    let output = compiler.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.success(), words))
}

const HEADERS: &str = "#include <stddef.h>\n#include <infiniband/verbs.h>\n";

#[test]
fn structures_and_values_are_those_of_the_installed_header() {
    match compile(HEADERS) {
        Ok((true, _)) => {}
        Ok((false, _)) => {
            skip::skip("infiniband/verbs.h is not installed (package libibverbs-dev)");
            return;
        }
        Err(error) => {
            skip::skip(format_args!("no C compiler: {error}"));
            return;
        }
    }
    let mut source = String::from(HEADERS);
    sizes!(source,
        ibv_ah_attr ibv_async_event ibv_context ibv_cq ibv_device ibv_device_attr ibv_gid_entry
        ibv_mr ibv_pd ibv_qp ibv_qp_attr ibv_qp_cap ibv_qp_init_attr ibv_qp_init_attr_ex
        ibv_recv_wr ibv_send_wr ibv_sge ibv_wc
    );
    places!(source,
        ibv_context { ops cmd_fd async_fd num_comp_vectors abi_compat }
        ibv_context_ops { poll_cq req_notify_cq post_send post_recv }
        ibv_cq_ex { status wr_id start_poll end_poll read_byte_len read_completion_ts }
        ibv_cq_init_attr_ex { cqe channel wc_flags comp_mask flags }
        ibv_device { node_type transport_type name dev_name dev_path ibdev_path }
        ibv_device_attr_ex { odp_caps hca_core_clock device_cap_flags_ex pci_atomic_caps }
        ibv_mr { addr length lkey rkey }
        ibv_port_attr { state active_mtu lid active_speed phys_state link_layer flags }
        ibv_qp_attr { ah_attr pkey_index max_dest_rd_atomic timeout rate_limit }
        ibv_qp_ex { wr_id wr_flags wr_rdma_write wr_set_sge wr_start wr_complete wr_abort }
        ibv_qp_init_attr_ex { comp_mask pd send_ops_flags }
        ibv_send_wr { sg_list num_sge opcode send_flags wr qp_type }
        ibv_wc { status opcode vendor_err byte_len qp_num wc_flags }
    );
    places_from_the_end!(source,
        query_port advise_mr query_rt_values create_cq_ex query_device_ex create_qp_ex sz context
    );
    values!(source,
        ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING
        ibv_event_type::IBV_EVENT_GID_CHANGE
        ibv_qp_attr_mask::IBV_QP_DEST_QPN
        ibv_qp_state::IBV_QPS_ERR
        ibv_qp_type::IBV_QPT_RC
        ibv_send_flags::IBV_SEND_INLINE
        ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
        ibv_wc_status::IBV_WC_GENERAL_ERR
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
    );
    let (same, words) = compile(&source).expect("it compiled the header");
    assert!(same, "{words}");
}
