//! Faults planted in the models, and what must find each: a property that can fail, and bounds in which it does.

use crate::{
    Fault,
    lease::{Lease, name as lease},
    quota::{Quota, name as quota},
    refute,
    window::{Windows, name as window},
};

/// A model with one fault.
#[derive(Clone, Copy, Debug)]
pub enum Planted {
    /// Of leases.
    Lease(Lease),
    /// Of slots.
    Quota(Quota),
    /// Of windows.
    Windows(Windows),
}

/// A fault, where it is planted, and what finds it.
#[derive(Clone, Copy, Debug)]
pub struct Plant {
    /// What is broken.
    pub fault: Fault,
    /// What must fail.
    pub property: &'static str,
    /// Where.
    pub model: Planted,
}

impl Plant {
    /// Of a fault.
    pub fn of(fault: Fault) -> Self {
        let small = Lease { crashes: false, polls: 1, ..Lease::new(2, 1) };
        let twice = Lease { attempts: 2, ..small };
        let drains = Lease { drains: true, ..small };
        let (property, model) = match fault {
            Fault::AckIgnoresEpoch | Fault::RetryIgnoresOwner => (lease::LAWFUL, small),
            Fault::HandBackIgnoresAttempt => (lease::IN_FLIGHT, Lease { parks: true, ..twice }),
            Fault::PollKeepsOrphans => (lease::ONE_KEEPER, twice),
            Fault::LateBeatRuns => (lease::LOOKED_AFTER, Lease { late_beats: true, ..small }),
            Fault::LatePollRuns => (lease::LOOKED_AFTER, Lease { polls: 2, ..small }),
            Fault::ParkedTaken => (lease::NOT_EARLY, Lease { parks: true, ..small }),
            Fault::DrainDispatches => (lease::NOT_DRAINED, drains),
            Fault::DrainRobs => (lease::NOT_ROBBED, drains),
            Fault::ResetTouchesCurrent => (lease::IN_FLIGHT, small),
            Fault::SkippedIsReset => (lease::RESET_AHEAD, Lease { skips: true, ..small }),
            Fault::NumberWhenWriting | Fault::FirstResetIsFinal => (lease::RESET_AHEAD, small),
            Fault::CompletionIgnoresAttempt | Fault::ReconcileTrustsKeys => (lease::LOOKED_AFTER, twice),
            Fault::ReleaseRetried => return Self::in_quota(fault, quota::COUNTED),
            Fault::LapsedWithoutMark => return Self::in_quota(fault, quota::LIMITED),
            Fault::LateGrantUsed => return Self::in_quota(fault, quota::IN_TIME),
            Fault::LostGrantIgnored => return Self::in_quota(fault, quota::NOT_KEPT),
            Fault::DeletedWhileOut => return Self::in_quota(fault, quota::OVER),
            Fault::WindowsShareLog => {
                let model = Planted::Windows(Windows { fault: Some(fault), ..Windows::new(2, 2) });
                return Self { fault, property: window::LIMITED, model };
            }
        };
        Self { fault, property, model: Planted::Lease(Lease { fault: Some(fault), ..model }) }
    }

    fn in_quota(fault: Fault, property: &'static str) -> Self {
        let model = Planted::Quota(Quota { frail: 1, swift: 1, limit: 1, fault: Some(fault) });
        Self { fault, property, model }
    }

    /// The steps to where the property fails. None: the fault goes unnoticed.
    pub fn find(&self) -> Option<Vec<String>> {
        match self.model {
            Planted::Lease(model) => refute(model, self.property),
            Planted::Quota(model) => refute(model, self.property),
            Planted::Windows(model) => refute(model, self.property),
        }
    }
}
