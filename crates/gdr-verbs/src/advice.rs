//! Advice about memory that is registered for paging on demand.

use std::ffi::c_int;

use gdr_nic::Memory;
use gdr_verbs_sys::{ib_uverbs_advise_mr_advice as Advice, ibv_pd, ibv_sge};

use crate::domain::Domain;
use crate::errno::Errno;
use crate::host_memory::{Rights, populate};
use crate::region::REGIONS;
use crate::request::entries;
use crate::ret::status;

/// `IBV_ADVISE_MR_FLAG_FLUSH`: the pages are there when the call returns, as they always are here.
const FLUSH: u32 = 1;

/// Fetches the pages of ranges of on-demand regions.
///
/// # Safety
/// `list` has `count` entries.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: Advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    status(|| {
        let domain = Domain::of(pd)?;
        let rights = match advice {
            Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Some(Rights::Read),
            Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Some(Rights::ReadWrite),
            Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => None,
            _ => return Err(Errno::OPNOTSUPP),
        };
        if flags & !FLUSH != 0 || count == 0 {
            return Err(Errno::INVAL);
        }
        let count = c_int::try_from(count).map_err(|_| Errno::INVAL)?;
        // SAFETY: the contract of this function.
        for sge in unsafe { entries(list, count, u32::MAX) }? {
            let region = REGIONS.find(|region| region.has_key(sge.lkey));
            let region = region.ok_or(Errno::NOENT)?;
            let address = region.on_demand_range(&domain, sge, rights)?;
            if let Some(rights) = rights {
                let memory = Memory {
                    address,
                    len: sge.length as usize,
                    iova: sge.addr,
                };
                populate(memory, rights)?;
            }
        }
        Ok(())
    })
}
