//! Immediate action for each driver error (XID), from NVIDIA's XID catalogue for Ampere and newer GPUs.
//!
//! NVML reports only the number, so an entry whose action depends on the rest of the log line has the safe action of
//! its class.

/// Action that a driver error asks for, from mild to severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XidAction {
    /// Informational, or a consequence of another XID.
    Ignore,
    /// The application failed; the GPU is healthy.
    RestartApplication,
    /// The GPU is unusable until its reset.
    ResetGpu,
    /// The machine is unusable until it restarts.
    RestartMachine,
    /// The GPU is unusable, and neither reset nor restart is expected to repair it.
    ContactSupport,
}

impl XidAction {
    /// Highest number of the catalogue.
    pub const LAST: u64 = 172;

    /// Numbers that are not in the catalogue, or are there as unused, ask for support.
    pub fn of(number: u64) -> Self {
        match number {
            // 45 cleans up after another XID. 144 to 150 are NVLink errors: their fatal forms also raise 48.
            14
            | 37
            | 38
            | 43..=45
            | 63
            | 66
            | 67
            | 92
            | 93
            | 106..=108
            | 121
            | 137
            | 141
            | 144..=150
            | 152..=154
            | 157
            | 160..=164
            | 166 => Self::Ignore,
            // Exceptions of engines, invalid commands, page faults and contained memory errors.
            8
            | 11
            | 13
            | 25
            | 31
            | 32
            | 39..=41
            | 60
            | 68..=72
            | 75..=77
            | 80
            | 82..=86
            | 88
            | 89
            | 94
            | 96..=105
            | 126..=135
            | 139 => Self::RestartApplication,
            // Halted controllers, uncontained memory errors, NVLink and GSP failures.
            46 | 48 | 62 | 64 | 74 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 155 | 156
            | 158 | 159 | 169 | 171 | 172 => Self::ResetGpu,
            // Fallen off the bus, fatal time-out of the bus, failed key rotation.
            79 | 151 | 167 => Self::RestartMachine,
            _ => Self::ContactSupport,
        }
    }

    /// True if no workload may start on the GPU until the action is done.
    pub fn takes_gpu_out(self) -> bool {
        self >= Self::ResetGpu
    }

    /// True if no workload may start on the whole machine until the action is done.
    pub fn takes_machine_out(self) -> bool {
        self == Self::RestartMachine
    }

    /// Remedy for an administrator.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Ignore => "no action needed",
            Self::RestartApplication => "restart the application",
            Self::ResetGpu => {
                "drain the GPU and reset it with `nvidia-smi --gpu-reset`, then uncordon it"
            }
            Self::RestartMachine => "drain the node and restart the machine",
            Self::ContactSupport => "drain the GPU and contact the support of the vendor",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_the_catalogue_has_its_action() {
        let classes = [
            (XidAction::Ignore, [43, 45, 63, 92, 154].as_slice()),
            (XidAction::RestartApplication, &[13, 31, 68, 69, 94]),
            (XidAction::ResetGpu, &[46, 48, 64, 74, 95, 109, 119, 140, 158]),
            (XidAction::RestartMachine, &[79, 151]),
            (XidAction::ContactSupport, &[1, 54, 142, 165, 999, u64::MAX]),
        ];
        for (action, numbers) in classes {
            for number in numbers {
                assert_eq!(XidAction::of(*number), action, "XID {number}");
            }
        }
    }

    #[test]
    fn only_faults_of_the_hardware_take_a_gpu_out() {
        let out: Vec<u64> = (0..=143).filter(|xid| XidAction::of(*xid).takes_gpu_out()).collect();
        assert!(out.contains(&79) && out.contains(&109));
        assert!(!out.contains(&13) && !out.contains(&45) && !out.contains(&94));
    }
}
