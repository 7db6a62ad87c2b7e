//! Address handles: where datagrams are sent.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use gdr_verbs_sys::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_pd, ibv_wc, ibv_wc_flags};

use crate::context::Context;
use crate::device::check_gid_index;
use crate::domain::{Domain, Use, next_handle};
use crate::errno::Errno;
use crate::ret::{minus_one, pointer, status};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;

/// RoCE's UDP port.
const PORT: u16 = 4791;

/// `struct ibv_ah`.
#[repr(C)]
struct CHandle {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    handle: u32,
}

/// `struct ibv_grh`: the header in front of a received datagram.
#[repr(C)]
struct CHeader {
    version_class_flow: u32,
    payload_len: u16,
    next_header: u8,
    hop_limit: u8,
    sgid: ibv_gid,
    dgid: ibv_gid,
}

/// An address handle.
pub(crate) struct AddressHandle {
    _object: CObject<CHandle>,
    context: Arc<Context>,
    to: SocketAddr,
    _domain: Use,
}

pub(crate) static HANDLES: Table<AddressHandle> = Table::new();

impl AddressHandle {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn to(&self) -> SocketAddr {
        self.to
    }

    fn create(domain: &Arc<Domain>, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
        let to = destination(attr)?;
        let context = Arc::clone(domain.context());
        // SAFETY: pointers and a number.
        let object = unsafe {
            CObject::<CHandle>::new(|ah| {
                ah.context = context.as_ptr();
                ah.pd = domain.as_ptr();
                ah.handle = next_handle();
            })
        };
        let handle = object.as_ptr().cast::<ibv_ah>();
        let created = Self {
            _object: object,
            context,
            to,
            _domain: domain.users().add(),
        };
        HANDLES.insert(handle, Arc::new(created));
        Ok(handle)
    }
}

/// The address and port of a peer.
///
/// # Errors
/// `EINVAL` for a path without a GID, which RoCE does not have.
pub(crate) fn destination(path: &ibv_ah_attr) -> Result<SocketAddr, Errno> {
    if path.is_global == 0 {
        return Err(Errno::INVAL);
    }
    check_gid_index(path.grh.sgid_index.into())?;
    match address_of(&path.grh.dgid) {
        IpAddr::V6(gid) if gid.is_unspecified() => Err(Errno::INVAL),
        address => Ok(SocketAddr::new(address, PORT)),
    }
}

/// The address of a GID, which stands for it.
pub(crate) fn address_of(gid: &ibv_gid) -> IpAddr {
    // SAFETY: all bytes of the union are initialized, and every value is valid.
    let gid = Ipv6Addr::from(unsafe { gid.raw });
    gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4)
}

/// # Safety
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    forward!(unless is_own(pd), ibv_create_ah(pd, attr));
    pointer(|| {
        let domain = Domain::of(pd)?;
        // SAFETY: the contract of this function.
        let attr = unsafe { attr.read() };
        if attr.port_num != 1 {
            return Err(Errno::INVAL);
        }
        AddressHandle::create(&domain, &attr)
    })
}

/// The path back to the sender of a datagram.
///
/// # Safety
/// `wc` is readable, and so is `grh` if `wc` says that there is one.
unsafe fn path_to_sender(
    port: u8,
    wc: *const ibv_wc,
    grh: *const CHeader,
) -> Result<ibv_ah_attr, Errno> {
    // SAFETY: the contract of this function.
    let has_grh = unsafe { (*wc).wc_flags } & ibv_wc_flags::IBV_WC_GRH.0 != 0;
    if port != 1 || !has_grh {
        return Err(Errno::INVAL);
    }
    let mut attr = ibv_ah_attr {
        is_global: 1,
        port_num: port,
        ..Default::default()
    };
    // SAFETY: the contract of this function; a header over IPv4 is in the last 20 of its bytes.
    let (first, sgid, source_v4) = unsafe {
        let bytes = grh.cast::<u8>();
        let at = |offset: usize| bytes.add(offset).read();
        let v4 = [at(32), at(33), at(34), at(35)];
        (
            at(0),
            (&raw const (*grh).sgid).read_unaligned(),
            (at(20), v4),
        )
    };
    attr.grh.dgid = match source_v4 {
        // An IPv4 header follows 20 bytes without meaning, an IPv6 header is at the beginning.
        (version, v4) if version >> 4 == 4 && first >> 4 != 6 => ibv_gid {
            raw: std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets(),
        },
        _ => sgid,
    };
    attr.grh.hop_limit = 0xff;
    Ok(attr)
}

/// # Safety
/// `wc` and `grh` describe a received datagram; `attr` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut std::ffi::c_void,
    attr: *mut ibv_ah_attr,
) -> c_int {
    forward!(unless is_own(context), ibv_init_ah_from_wc(context, port, wc, grh, attr));
    minus_one(|| {
        Context::of(context)?;
        // SAFETY: the contract of this function.
        unsafe { attr.write(path_to_sender(port, wc, grh.cast())?) };
        Ok(())
    })
}

/// # Safety
/// `wc` and `grh` describe a received datagram.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut std::ffi::c_void,
    port: u8,
) -> *mut ibv_ah {
    forward!(unless is_own(pd), ibv_create_ah_from_wc(pd, wc, grh, port));
    pointer(|| {
        let domain = Domain::of(pd)?;
        // SAFETY: the contract of this function.
        let attr = unsafe { path_to_sender(port, wc, grh.cast()) }?;
        AddressHandle::create(&domain, &attr)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    forward!(unless is_own(ah), ibv_destroy_ah(ah));
    status(|| HANDLES.remove(ah).map(drop))
}
