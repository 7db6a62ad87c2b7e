//! Registration by attributes: `ibv_reg_mr_ex`, which is all other registrations in one.

use std::ffi::c_void;
use std::ptr;

use gdr_verbs_sys::{ibv_buf, ibv_mr, ibv_mr_init_attr, ibv_mr_init_attr_mask as Mask, ibv_pd};

use crate::buffer::Buffer;
use crate::domain::Domain;
use crate::errno::Errno;
use crate::region::{self, Exported, Wanted};
use crate::ret::{pointer, unsupported_pointer};
use crate::slab::is_own;
use crate::system::forward_or;

/// The fields that a registration may have.
const KNOWN: u64 = bit(Mask::IBV_REG_MR_MASK_IOVA)
    | bit(Mask::IBV_REG_MR_MASK_ADDR)
    | bit(Mask::IBV_REG_MR_MASK_FD)
    | bit(Mask::IBV_REG_MR_MASK_FD_OFFSET)
    | bit(Mask::IBV_REG_MR_MASK_BUF);

const fn bit(flag: Mask) -> u64 {
    flag.0 as u64
}

const fn has(mask: u64, flag: Mask) -> bool {
    mask & bit(flag) != 0
}

/// What a program wants registered. A field without its bit in the mask is not read: the structure
/// of a program that was built with an older header ends earlier.
struct Attributes {
    len: usize,
    access: u32,
    mask: u64,
    iova: Option<u64>,
    address: Option<*mut c_void>,
    fd: Option<i32>,
    offset: Option<u64>,
    handle: *mut c_void,
    buffer: *mut ibv_buf,
}

impl Attributes {
    /// # Safety
    /// The fields that the mask names are readable.
    unsafe fn read(attr: *const ibv_mr_init_attr) -> Self {
        // SAFETY: the contract of this function: this field is always there.
        let mask = unsafe { (*attr).comp_mask };
        macro_rules! field {
            ($flag:ident, $field:ident) => {
                // SAFETY: read only where the mask names the field.
                has(mask, Mask::$flag).then(|| unsafe { (*attr).$field })
            };
        }
        let handle = field!(IBV_REG_MR_MASK_DMAH, dmah);
        Self {
            // SAFETY: the contract of this function: these fields are always there.
            len: unsafe { (*attr).length },
            // SAFETY: this one, too, is always there.
            access: unsafe { (*attr).access }.cast_unsigned(),
            mask,
            iova: field!(IBV_REG_MR_MASK_IOVA, iova),
            address: field!(IBV_REG_MR_MASK_ADDR, addr),
            fd: field!(IBV_REG_MR_MASK_FD, fd),
            offset: field!(IBV_REG_MR_MASK_FD_OFFSET, fd_offset),
            handle: handle.map_or(ptr::null_mut(), <*mut _>::cast),
            buffer: field!(IBV_REG_MR_MASK_BUF, buf).unwrap_or(ptr::null_mut()),
        }
    }

    fn register(&self, pd: *mut ibv_pd) -> Result<*mut ibv_mr, Errno> {
        let domain = Domain::of(pd)?;
        // gdr's devices do not support DMA handles.
        if self.mask & !KNOWN != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let is_of_buffer = has(self.mask, Mask::IBV_REG_MR_MASK_BUF);
        match (self.address, self.fd, self.offset, self.iova) {
            (Some(address), None, None, iova) => {
                let buffer = is_of_buffer
                    .then(|| Buffer::with_range(self.buffer, &domain, (address, self.len)))
                    .transpose()?;
                let mut wanted = Wanted::at_its_address(address, self.len, self.access);
                wanted.iova = iova.unwrap_or(wanted.iova);
                region::register(&domain, wanted, buffer)
            }
            (None, Some(fd), Some(offset), Some(iova)) if !is_of_buffer => Exported {
                fd,
                offset,
                len: self.len,
                iova,
                access: self.access,
            }
            .register(&domain),
            _ => Err(Errno::INVAL),
        }
    }
}

/// # Safety
/// The fields of `attr` that its mask names are readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    // SAFETY: the contract of this function.
    let wanted = unsafe { Attributes::read(attr) };
    let is_of_own = is_own(pd) || is_own(wanted.handle) || is_own(wanted.buffer);
    forward_or!(unless is_of_own, ibv_reg_mr_ex(pd, attr), unsupported_pointer());
    pointer(|| wanted.register(pd))
}
