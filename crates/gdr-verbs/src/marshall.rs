//! Structures of the kernel's interface, which librdmacm turns into libibverbs' ones.

use gdr_verbs_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_state,
};

/// `struct ib_uverbs_global_route`.
#[repr(C)]
struct KernelRoute {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
}

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
struct KernelVector {
    grh: KernelRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
struct KernelAttributes {
    mask: u32,
    words: [u32; 9],
    vector: KernelVector,
    alternate: KernelVector,
    capabilities: [u32; 5],
    pkey_index: u16,
    alt_pkey_index: u16,
    bytes: [u8; 11],
    reserved: [u8; 5],
}

const _: () = assert!(size_of::<KernelAttributes>() == 144);

fn vector(from: &KernelVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// # Safety
/// `to` is writable, and `from` readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const KernelVector) {
    // SAFETY: the contract of this function.
    unsafe { to.write(vector(&*from)) };
}

/// # Safety
/// Same as [`ibv_copy_ah_attr_from_kern`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const KernelAttributes,
) {
    // SAFETY: the contract of this function.
    let from = unsafe { &*from };
    let [
        state,
        current,
        mtu,
        migration,
        qkey,
        rq_psn,
        sq_psn,
        dest,
        access,
    ] = from.words;
    let [send_wr, recv_wr, send_sge, recv_sge, inline] = from.capabilities;
    let [
        sqd,
        draining,
        reads,
        dest_reads,
        rnr_timer,
        port,
        timeout,
        retries,
        rnr,
        alt_port,
        alt,
    ] = from.bytes;
    let attributes = ibv_qp_attr {
        qp_state: ibv_qp_state(state),
        cur_qp_state: ibv_qp_state(current),
        path_mtu: ibv_mtu(mtu),
        path_mig_state: ibv_mig_state(migration),
        qkey,
        rq_psn,
        sq_psn,
        dest_qp_num: dest,
        qp_access_flags: access,
        cap: ibv_qp_cap {
            max_send_wr: send_wr,
            max_recv_wr: recv_wr,
            max_send_sge: send_sge,
            max_recv_sge: recv_sge,
            max_inline_data: inline,
        },
        ah_attr: vector(&from.vector),
        alt_ah_attr: vector(&from.alternate),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: sqd,
        sq_draining: draining,
        max_rd_atomic: reads,
        max_dest_rd_atomic: dest_reads,
        min_rnr_timer: rnr_timer,
        port_num: port,
        timeout,
        retry_cnt: retries,
        rnr_retry: rnr,
        alt_port_num: alt_port,
        alt_timeout: alt,
        rate_limit: 0,
    };
    // SAFETY: the contract of this function.
    unsafe { to.write(attributes) };
}

/// Where `struct ibv_sa_path_rec` and the kernel's `struct ib_user_path_rec`, of 64 bytes both, have the same
/// fields: both places, and the length. The MTU, which follows, is a byte in the first and a word in the second.
const PATH_FIELDS: [(usize, usize, usize); 6] = [
    (0, 0, 44),
    (44, 54, 2),
    (48, 44, 4),
    (52, 56, 1),
    (54, 52, 2),
    (56, 57, 2),
];
const PATH_MTU: (usize, usize) = (58, 48);
/// From here on, both are equal.
const PATH_REST: usize = 59;

/// # Safety
/// Same as [`ibv_copy_ah_attr_from_kern`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut [u8; 64], from: *const [u8; 64]) {
    // SAFETY: the contract of this function.
    let from = unsafe { from.read() };
    let mut path = from;
    for (own, kernel, len) in PATH_FIELDS {
        path[own..own + len].copy_from_slice(&from[kernel..kernel + len]);
    }
    path[PATH_MTU.0] = u32::from_ne_bytes([0, 1, 2, 3].map(|at| from[PATH_MTU.1 + at])) as u8;
    path[PATH_REST..].copy_from_slice(&from[PATH_REST..]);
    // SAFETY: the contract of this function.
    unsafe { to.write(path) };
}

/// # Safety
/// Same as [`ibv_copy_ah_attr_from_kern`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut [u8; 64], from: *const [u8; 64]) {
    // SAFETY: the contract of this function.
    let from = unsafe { from.read() };
    let mut path = from;
    for (own, kernel, len) in PATH_FIELDS {
        path[kernel..kernel + len].copy_from_slice(&from[own..own + len]);
    }
    let mtu = u32::from(from[PATH_MTU.0]).to_ne_bytes();
    path[PATH_MTU.1..PATH_MTU.1 + 4].copy_from_slice(&mtu);
    // SAFETY: the contract of this function.
    unsafe { to.write(path) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back_from_the_kernels_layout() {
        let mut kernel: [u8; 64] = std::array::from_fn(|at| at as u8);
        kernel[48..52].copy_from_slice(&3_u32.to_ne_bytes());
        let (mut path, mut again) = ([0; 64], [0; 64]);
        // SAFETY: structures of this function.
        unsafe {
            ibv_copy_path_rec_from_kern(&mut path, &kernel);
            ibv_copy_path_rec_to_kern(&mut again, &path);
        }
        assert_eq!(again, kernel);
        assert_eq!((path[44], path[58], path[63]), (54, 3, 63));
    }
}
