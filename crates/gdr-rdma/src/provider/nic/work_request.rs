//! Requests in the form that the NIC takes, and what they keep registered.

use gdr_nic::RetainedList;
use smallvec::SmallVec;

use crate::memory_region::Segment;
use crate::work_request::{Data, RecvRequest, Segments};

/// The segments of a request, by key.
pub(crate) type KeyedSegments = SmallVec<[gdr_roce::Segment; 2]>;

/// Returns the segments of a request, by key.
pub(crate) fn keyed(segments: &[Segment]) -> KeyedSegments {
    segments.iter().map(Segment::raw).collect()
}

/// Returns the data of a request, whose segments are put into `keyed`.
pub(crate) fn data<'a>(data: &'a Data, keyed: &'a mut KeyedSegments) -> gdr_roce::Data<'a> {
    match data {
        Data::Segments(segments) => {
            // Usually a single segment, for which `extend` takes longer.
            for segment in segments {
                keyed.push(segment.raw());
            }
            gdr_roce::Data::Segments(keyed)
        }
        Data::Inline(bytes) => gdr_roce::Data::Inline(bytes),
    }
}

/// Takes the segments out of a posted request's data, for the NIC to retain.
pub(crate) fn take(data: &mut Data) -> RetainedList {
    match data {
        Data::Segments(segments) => retained(segments),
        Data::Inline(_) => RetainedList::new(),
    }
}

/// Like [`take`], for a receive.
pub(crate) fn take_recv(request: &mut RecvRequest) -> RetainedList {
    retained(&mut request.segments)
}

/// Takes the owners of segments, in any order.
fn retained(segments: &mut Segments) -> RetainedList {
    let mut owners = RetainedList::new();
    while let Some(segment) = segments.pop() {
        owners.push(segment.into_region().into_retained());
    }
    owners
}
