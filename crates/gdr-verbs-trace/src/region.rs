//! Registrations, and the kinds of memory by key.

use std::ffi::{c_int, c_uint, c_void};

use gdr_trace::MemoryKind;
use gdr_verbs_sys::{
    ibv_access_flags, ibv_context, ibv_mr, ibv_mr_init_attr, ibv_mr_init_attr_mask, ibv_pd,
};

use crate::caller_memory;
use crate::check::{self, Described};
use crate::context::Context;
use crate::gpu_memory::gpu_of;
use crate::key_map::KeyMap;
use crate::library;
use crate::nesting::{Nesting, errno, keep_quiet};
use crate::recorder::Registration;

/// Kind and row of each region, by the number of its context and its local key.
static REGIONS: KeyMap = KeyMap::new();
/// Keys of regions by the address of the structure, because a program may pass any address.
static KEYS: KeyMap = KeyMap::new();

/// What the map knows of a region.
#[derive(Clone, Copy)]
struct Known {
    kind: MemoryKind,
    row: u32,
}

impl Known {
    fn pack(self) -> u64 {
        u64::from(self.row) << 8 | self.kind.number() as u64
    }

    fn unpack(value: u64) -> Option<Self> {
        Some(Self {
            kind: MemoryKind::from_number((value & 0xff) as usize)?,
            row: (value >> 8) as u32,
        })
    }
}

/// Returns the memory that a local key names.
#[inline]
pub(crate) fn kind_of(context: &Context, lkey: u32) -> MemoryKind {
    let known = REGIONS.get(context.key(lkey)).and_then(Known::unpack);
    known.map_or(MemoryKind::Unknown, |known| known.kind)
}

/// Memory to register.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Address in this process; for a dma-buf, the one that the program passes.
    address: u64,
    len: usize,
    by: Method,
    /// The first address that requests name.
    first: u64,
    /// Value of `enum ibv_access_flags`.
    access: c_uint,
}

/// How a registration names its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Address,
    DmaBuf,
}

impl Wanted {
    fn by_address(address: *mut c_void, len: usize, access: c_uint) -> Self {
        let address = address.addr() as u64;
        let is_zero_based =
            ibv_access_flags(access).contains(ibv_access_flags::IBV_ACCESS_ZERO_BASED);
        Self {
            address,
            len,
            by: Method::Address,
            first: if is_zero_based { 0 } else { address },
            access,
        }
    }

    /// Sets the first address that requests name.
    fn from(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// Returns `None` for an invalid descriptor, with which programs test for support.
    pub(crate) fn by_dma_buf(fd: c_int, iova: u64, len: usize, access: c_uint) -> Option<Self> {
        (fd >= 0).then_some(Self {
            address: iova,
            len,
            by: Method::DmaBuf,
            first: iova,
            access,
        })
    }

    /// Returns `None` also for unreadable attributes.
    fn by_attributes(attr: *const ibv_mr_init_attr) -> Option<Self> {
        // SAFETY: the structure consists of numbers and pointers.
        let given = unsafe { caller_memory::read(attr) }?;
        let has_fd = given.comp_mask & u64::from(ibv_mr_init_attr_mask::IBV_REG_MR_MASK_FD.0) != 0;
        match has_fd {
            true => Self::by_dma_buf(given.fd, given.iova, given.length, given.access as c_uint),
            false => {
                let wanted = Self::by_address(given.addr, given.length, given.access as c_uint);
                let mask = u64::from(ibv_mr_init_attr_mask::IBV_REG_MR_MASK_IOVA.0);
                Some(match given.comp_mask & mask {
                    0 => wanted,
                    _ => wanted.from(given.iova),
                })
            }
        }
    }

    fn registration(&self, context: &Context, errno: i32) -> Registration {
        let gpu = gpu_of(context.recorder, self.address);
        let memory = match (self.by, gpu) {
            (Method::DmaBuf, _) => MemoryKind::DmaBuf,
            (Method::Address, Some(_)) => MemoryKind::GpuByAddress,
            (Method::Address, None) => MemoryKind::Host,
        };
        Registration {
            nic: context.nic,
            memory,
            gpu,
            errno,
        }
    }

    /// As rules look at it.
    fn described(&self, kind: MemoryKind) -> Described {
        let is_whole_space = self.len == usize::MAX;
        let is_host = kind == MemoryKind::Host && !is_whole_space;
        Described {
            first: self.first,
            len: if is_whole_space {
                u64::MAX
            } else {
                self.len as u64
            },
            address: is_host.then_some(self.address),
            access: self.access,
        }
    }

    /// Returns its bytes; 0 for the whole address space, as of implicit on-demand paging.
    fn bytes(&self) -> u64 {
        if self.len == usize::MAX {
            0
        } else {
            self.len as u64
        }
    }
}

/// Registers in the real library, and counts what is wanted.
///
/// # Safety
/// `call` returns null or a new region.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    wanted: impl FnOnce() -> Option<Wanted>,
    call: impl FnOnce() -> *mut ibv_mr,
) -> *mut ibv_mr {
    let nesting = Nesting::enter();
    let mr = call();
    if !nesting.is_outermost() {
        return mr;
    }
    let errno = if mr.is_null() { errno().0 } else { 0 };
    keep_quiet(|| {
        // SAFETY: null, or a new region that the program has not deregistered.
        let context = match unsafe { mr.as_ref() } {
            Some(region) => region.context,
            // After a refusal, `pd` need not be a domain. A domain begins with its context.
            // SAFETY: the value is a pointer.
            None => unsafe { caller_memory::read(pd.cast::<*mut ibv_context>()) }?,
        };
        add(Context::of(context)?, &wanted()?, mr, errno);
        Some(())
    });
    mr
}

/// Counts a registration: a new region, or the error without one.
fn add(context: &Context, wanted: &Wanted, mr: *mut ibv_mr, errno: i32) {
    let registration = wanted.registration(context, errno);
    let row = context.recorder.add_region(registration, wanted.bytes());
    // SAFETY: null, or a region that the real library has just returned.
    if let Some(region) = unsafe { mr.as_ref() } {
        let kind = registration.memory;
        let key = context.key(region.lkey);
        REGIONS.insert(key, Known { kind, row }.pack());
        KEYS.insert(mr.addr() as u64, key);
        check::registered(region, mr, &wanted.described(kind));
    }
}

/// Defines functions that register in the real library and count the result: `name = wrapped function(domain,
/// arguments) of what is wanted`.
macro_rules! registering {
    ($(
        $(#[$about:meta])*
        $own:ident = $real:ident($pd:ident $(, $argument:ident: $type:ty)*) of $wanted:expr;
    )*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        #[doc = concat!("The contract of `", stringify!($real), "`.")]
        pub(crate) unsafe extern "C" fn $own<const L: usize>(
            $pd: *mut gdr_verbs_sys::ibv_pd,
            $($argument: $type),*
        ) -> *mut gdr_verbs_sys::ibv_mr {
            // SAFETY: the caller's arguments.
            let call = || unsafe { $crate::library::$real(L)($pd $(, $argument)*) };
            // SAFETY: the real library returns null or a new region.
            unsafe { $crate::region::register($pd, || $wanted, call) }
        }
    )*};
}
pub(crate) use registering;

registering! {
    /// Registers memory by its address.
    reg_mr = ibv_reg_mr(pd, address: *mut c_void, len: usize, access: c_int)
        of Some(Wanted::by_address(address, len, access as c_uint));

    /// Registers memory by its address, with an address for requests.
    reg_mr_iova = ibv_reg_mr_iova(
        pd, address: *mut c_void, len: usize, iova: u64, access: c_int
    ) of Some(Wanted::by_address(address, len, access as c_uint).from(iova));

    /// Like [`reg_mr_iova`], with all flags.
    reg_mr_iova2 = ibv_reg_mr_iova2(
        pd, address: *mut c_void, len: usize, iova: u64, access: c_uint
    ) of Some(Wanted::by_address(address, len, access).from(iova));

    /// Registers memory by a descriptor.
    reg_dmabuf_mr = ibv_reg_dmabuf_mr(
        pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int
    ) of Wanted::by_dma_buf(fd, iova, len, access as c_uint);

    /// Registers memory as attributes say.
    reg_mr_ex = ibv_reg_mr_ex(pd, attr: *mut ibv_mr_init_attr) of Wanted::by_attributes(attr);
}

/// What is known of a region that a call may end.
struct Forgotten {
    address: u64,
    key: u64,
    known: Known,
}

impl Forgotten {
    /// Removes a region from the maps. Nothing is read through the address.
    fn take(mr: *mut ibv_mr) -> Option<Self> {
        let address = mr.addr() as u64;
        let key = KEYS.remove(address)?;
        let known = Known::unpack(REGIONS.remove(key)?)?;
        Some(Self {
            address,
            key,
            known,
        })
    }

    fn put_back(&self) {
        REGIONS.insert(self.key, self.known.pack());
        KEYS.insert(self.address, self.key);
    }

    /// Counts the end of the region.
    fn end(&self) {
        if let Some(context) = Context::of_key(self.key) {
            context.recorder.remove_region(self.known.row);
        }
    }
}

/// # Safety
/// As for `ibv_dereg_mr`.
pub(crate) unsafe extern "C" fn dereg_mr<const L: usize>(mr: *mut ibv_mr) -> c_int {
    let nesting = Nesting::enter();
    // Before the call: afterwards, address and key may belong to another region.
    let before = nesting
        .is_outermost()
        .then(|| keep_quiet(|| Forgotten::take(mr)).flatten())
        .flatten();
    let stack = before
        .as_ref()
        .and_then(|_| keep_quiet(|| check::deregistering(mr)).flatten());
    // SAFETY: the caller's argument.
    let result = unsafe { library::ibv_dereg_mr(L)(mr) };
    if let Some(before) = before {
        keep_quiet(|| match result {
            0 => {
                check::deregistered(mr, stack);
                before.end();
            }
            _ => before.put_back(),
        });
    }
    result
}

/// `IBV_REREG_MR_CHANGE_TRANSLATION` of the header's enumeration.
const CHANGE_TRANSLATION: c_int = 1;

/// Counts a region that gets other memory as a registration, but not one that only gets other rights.
///
/// # Safety
/// As for `ibv_rereg_mr`.
pub(crate) unsafe extern "C" fn rereg_mr<const L: usize>(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    let nesting = Nesting::enter();
    let before = nesting
        .is_outermost()
        .then(|| keep_quiet(|| Forgotten::take(mr)).flatten())
        .flatten();
    // SAFETY: the caller's arguments.
    let result = unsafe { library::ibv_rereg_mr(L)(mr, flags, pd, address, len, access) };
    let Some(before) = before else {
        return result;
    };
    keep_quiet(|| {
        let Some(context) = Context::of_key(before.key).filter(|_| result == 0) else {
            return before.put_back();
        };
        check::registered_again(mr);
        if flags & CHANGE_TRANSLATION == 0 {
            // SAFETY: the library has registered the region again, and set its new key.
            let key = context.key(unsafe { (*mr).lkey });
            return Forgotten { key, ..before }.put_back();
        }
        before.end();
        add(
            context,
            &Wanted::by_address(address, len, access as c_uint),
            mr,
            0,
        );
    });
    result
}
