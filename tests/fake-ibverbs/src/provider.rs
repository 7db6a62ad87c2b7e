//! The functions that a context carries for the inline verbs.

use std::ptr;

use gdr_verbs_sys::verbs_context;

use crate::spec::DeviceSpec;
use crate::{completion, pair, post, query, region};

/// What `ibv_context.abi_compat` says where there is more in front of the context.
const EXTENDED: usize = usize::MAX;

/// Gives a context what a device has.
pub(crate) fn fill(context: &mut verbs_context, spec: &DeviceSpec) {
    context.sz = size_of::<verbs_context>();
    context.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    context.query_rt_values = Some(query::query_rt_values);
    if spec.on_demand {
        context.advise_mr = Some(region::advise_mr);
    }
    if spec.extended_queries {
        context.query_device_ex = Some(query::query_device_ex);
        context.query_port = Some(query::query_port);
    }
    if spec.extended_queues {
        context.create_cq_ex = Some(completion::create_cq_ex);
    }
    if spec.extended_requests {
        context.create_qp_ex = Some(pair::create_qp_ex);
    }
}
