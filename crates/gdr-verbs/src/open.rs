//! Opening and closing of devices, and the operations of their contexts.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;

use gdr_verbs_sys::{ibv_context, ibv_device, verbs_context};

use crate::context::{CONTEXTS, Context};
use crate::device::Device;
use crate::errno::Errno;
use crate::refusals::refusals;
use crate::ret::{minus_one, pointer};
use crate::slab::is_own;
use crate::system::forward;
use crate::{
    address_handle, advice, channel, completion, completion_counter, completion_queue, cq_ex,
    device_memory, domain, flow, import, memory_window, post, query, queue_pair, region,
    shared_receive_queue, work_queue, xrc_domain,
};

/// The value of `ibv_context.abi_compat` in a context that is part of a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// Sets the operations that the inline functions of libibverbs' header call.
fn set_operations(context: &mut verbs_context) {
    context.sz = size_of::<verbs_context>();
    context.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion_queue::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.alloc_mw = Some(memory_window::alloc_mw);
    ops.bind_mw = Some(memory_window::bind_mw);
    ops.dealloc_mw = Some(memory_window::dealloc_mw);
    ops.post_srq_recv = Some(shared_receive_queue::post_srq_recv);
    context.priv_ = refusals();
    context.alloc_dm = Some(device_memory::alloc_dm);
    context.free_dm = Some(device_memory::free_dm);
    context.reg_dm_mr = Some(device_memory::reg_dm_mr);
    context.alloc_null_mr = Some(device_memory::alloc_null_mr);
    context.advise_mr = Some(advice::advise_mr);
    context.alloc_parent_domain = Some(domain::alloc_parent_domain);
    context.alloc_td = Some(domain::alloc_td);
    context.dealloc_td = Some(domain::dealloc_td);
    context.query_port = Some(query::query_port);
    context.query_device_ex = Some(query::query_device_ex);
    context.query_rt_values = Some(query::query_rt_values);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.create_qp_ex = Some(queue_pair::create_qp_ex);
    context.create_srq_ex = Some(shared_receive_queue::create_srq_ex);
    context.get_srq_num = Some(shared_receive_queue::get_srq_num);
    context.create_wq = Some(work_queue::create_wq);
    context.modify_wq = Some(work_queue::modify_wq);
    context.destroy_wq = Some(work_queue::destroy_wq);
    context.create_rwq_ind_table = Some(work_queue::create_rwq_ind_table);
    context.destroy_rwq_ind_table = Some(work_queue::destroy_rwq_ind_table);
    context.open_xrcd = Some(xrc_domain::open_xrcd);
    context.close_xrcd = Some(xrc_domain::close_xrcd);
    context.ibv_create_flow = Some(flow::create_flow);
    context.ibv_destroy_flow = Some(flow::destroy_flow);
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    forward!(unless is_own(device), ibv_open_device(device));
    pointer(|| open(Device::of(device)?, None))
}

/// Makes a context, which keeps the command descriptor that it was imported by.
pub(crate) fn open(
    device: Arc<Device>,
    descriptor: Option<OwnedFd>,
) -> Result<*mut ibv_context, Errno> {
    let context = Context::open(device, descriptor, set_operations)?;
    let handle = context.as_ptr();
    CONTEXTS.insert(handle, context);
    Ok(handle)
}

/// Ends the context with everything that was made from it, as the kernel does.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    forward!(unless is_own(context), ibv_close_device(context));
    minus_one(|| {
        let closed = CONTEXTS.remove(context)?;
        // Remove them in an order in which users go before what they use.
        drop(flow::FLOWS.remove_all(|flow| flow.is_of(&closed)));
        let pairs = queue_pair::PAIRS.remove_all(|pair| pair.is_of(&closed));
        pairs.iter().for_each(|pair| pair.leave());
        drop(pairs);
        drop(work_queue::INDIRECTIONS.remove_all(|table| table.is_of(&closed)));
        drop(work_queue::WORK_QUEUES.remove_all(|queue| queue.is_of(&closed)));
        drop(completion_counter::COUNTERS.remove_all(|counter| counter.is_of(&closed)));
        drop(shared_receive_queue::SHARED_QUEUES.remove_all(|queue| queue.is_of(&closed)));
        drop(xrc_domain::XRC_DOMAINS.remove_all(|domain| domain.is_of(&closed)));
        drop(address_handle::HANDLES.remove_all(|handle| handle.is_of(&closed)));
        let queues = completion_queue::QUEUES.remove_all(|queue| queue.is_of(&closed));
        queues.iter().for_each(|queue| queue.leave());
        drop(queues);
        drop(channel::CHANNELS.remove_all(|channel| channel.is_of(&closed)));
        drop(memory_window::WINDOWS.remove_all(|window| window.is_of(&closed)));
        drop(import::IMPORTED_REGIONS.remove_all(|region| region.is_of(&closed)));
        drop(region::REGIONS.remove_all(|region| region.is_of(&closed)));
        drop(device_memory::MEMORIES.remove_all(|memory| memory.is_of(&closed)));
        drop(domain::DOMAINS.remove_all(|domain| domain.is_of(&closed)));
        drop(domain::THREAD_DOMAINS.remove_all(|domain| domain.is_of(&closed)));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that these slots are filled, and that all others of the structure are not.
    macro_rules! assert_filled {
        ($operations:expr, $($slot:ident)*; without $($absent:ident)*) => {{
            let operations = &$operations;
            $(assert!(operations.$slot.is_some(), stringify!($slot));)*
            $(assert!(operations.$absent.is_none(), stringify!($absent));)*
        }};
    }

    #[test]
    fn operations_are_this_librarys_or_absent_and_the_header_refuses_the_absent_ones() {
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let mut context: verbs_context = unsafe { std::mem::zeroed() };
        set_operations(&mut context);
        assert_eq!(context.sz, size_of::<verbs_context>());
        assert_eq!(context.context.abi_compat.addr(), EXTENDED);
        assert_eq!(context.priv_, refusals());
        assert_filled!(context,
            query_port query_device_ex query_rt_values create_cq_ex create_qp_ex ibv_create_flow
            ibv_destroy_flow advise_mr alloc_null_mr reg_dm_mr alloc_dm free_dm alloc_parent_domain
            dealloc_td alloc_td get_srq_num create_srq_ex open_xrcd close_xrcd
            destroy_rwq_ind_table create_rwq_ind_table destroy_wq modify_wq create_wq;
            without free_buf alloc_buf dm_export_dmabuf_fd reg_mr_ex dealloc_dmah alloc_dmah
            read_counters attach_counters_point_flow create_counters destroy_counters
            modify_flow_action_esp destroy_flow_action
            create_flow_action_esp modify_qp_rate_limit
            modify_cq post_srq_ops open_qp
        );
        assert_filled!(context.context.ops,
            poll_cq req_notify_cq post_srq_recv post_send post_recv alloc_mw bind_mw dealloc_mw; without
        );
        // A slot that the list above does not name would be one of a later header.
        let slots = 41 * size_of::<usize>();
        assert_eq!(
            std::mem::offset_of!(verbs_context, sz),
            slots + 4 * size_of::<usize>()
        );
    }
}
