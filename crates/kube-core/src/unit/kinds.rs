//! Kinds of jobs that are units, as data.

/// One kind. Pointers are JSON pointers from the root of the object; `*` stands for every element of a list or map.
#[derive(Debug, PartialEq, Eq)]
pub struct UnitKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    /// The field that suspends the job; empty for a kind without one.
    pub suspend: &'static str,
    pub pods: Pods,
    pub end: End,
    /// Specs that are not units.
    pub exceptions: &'static [Exception],
}

/// The pods of a kind.
#[derive(Debug, PartialEq, Eq)]
pub enum Pods {
    /// Pod sets in the object itself.
    Sets(&'static [SetPath]),
    /// Pod sets of the object that its controller creates, suspended like itself.
    OfChild,
    /// Groups of this many pods, which the labels of the pods name. Each group is a gang of its own.
    Groups { size: &'static str },
}

#[derive(Debug, PartialEq, Eq)]
pub struct SetPath {
    /// The pod set, or every pod set.
    pub at: &'static str,
    /// Pointers from `at` to factors of the number of pods; an absent one counts as 1.
    pub factors: &'static [&'static str],
    /// Pointer from `at` to the spec of a `batch/v1` Job, whose parallelism and completions are another factor.
    pub job: Option<&'static str>,
    /// Pointer from `at` to the pod template.
    pub template: &'static str,
}

/// Signs of a finished job.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// One of these conditions is `True`.
    Conditions(&'static [&'static str]),
    /// The field has one of these values.
    Field(&'static str, &'static [&'static str]),
}

/// A spec of which not all pods exist at once, or whose number of pods changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Exception {
    pub at: &'static str,
    pub test: FieldTest,
    /// Reason for users, after the name of the field.
    pub reason: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
pub enum FieldTest {
    /// Neither absent, null nor empty.
    Present,
    Text(&'static str),
    True,
}

impl UnitKind {
    /// True if jobs of the kind can be suspended.
    pub fn can_suspend(&self) -> bool {
        !self.suspend.is_empty()
    }

    /// Kind in lower case, as in ids of workloads.
    pub fn word(&self) -> String {
        self.kind.to_lowercase()
    }

    /// API path of the version.
    pub fn base(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }

    /// API path of an object.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/namespaces/{namespace}/{}/{name}", self.base(), self.plural)
    }

    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

/// Kind of an owner reference; its version does not matter.
pub fn of_owner(api_version: &str, kind: &str) -> Option<&'static UnitKind> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    KINDS.iter().find(|known| known.group == group && known.kind == kind)
}

const KUBEFLOW: &str = "kubeflow.org";
const RUN_POLICY_SUSPEND: &str = "/spec/runPolicy/suspend";
const KUBEFLOW_END: End = End::Conditions(&["Succeeded", "Failed"]);

const fn replicas(at: &'static str) -> SetPath {
    SetPath { at, factors: &["/replicas"], job: None, template: "/template" }
}

/// Each group of a Ray cluster has `replicas` of `numOfHosts` pods.
const fn ray_workers(at: &'static str) -> SetPath {
    SetPath { at, factors: &["/replicas", "/numOfHosts"], job: None, template: "/template" }
}

const fn ray_head(at: &'static str) -> SetPath {
    SetPath { at, factors: &[], job: None, template: "/template" }
}

const RAY_AUTOSCALING: &str = "the autoscaler of Ray changes the number of pods";

/// Every kind that can be a unit. The API server may not serve all of them.
pub static KINDS: [UnitKind; 8] = [
    UnitKind {
        group: "batch",
        version: "v1",
        kind: "Job",
        plural: "jobs",
        suspend: "/spec/suspend",
        pods: Pods::Sets(&[SetPath {
            at: "/spec",
            factors: &[],
            job: Some(""),
            template: "/template",
        }]),
        end: End::Conditions(&["Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"]),
        exceptions: &[],
    },
    UnitKind {
        group: "jobset.x-k8s.io",
        version: "v1alpha2",
        kind: "JobSet",
        plural: "jobsets",
        suspend: "/spec/suspend",
        pods: Pods::Sets(&[SetPath {
            at: "/spec/replicatedJobs/*",
            factors: &["/replicas"],
            job: Some("/template/spec"),
            template: "/template/spec/template",
        }]),
        end: End::Conditions(&["Completed", "Failed"]),
        exceptions: &[
            Exception {
                at: "/spec/startupPolicy/startupPolicyOrder",
                test: FieldTest::Text("InOrder"),
                reason: "its jobs start one after the other",
            },
            Exception {
                at: "/spec/replicatedJobs/*/dependsOn",
                test: FieldTest::Present,
                reason: "its jobs start one after the other",
            },
        ],
    },
    UnitKind {
        group: "trainer.kubeflow.org",
        version: "v1alpha1",
        kind: "TrainJob",
        plural: "trainjobs",
        suspend: "/spec/suspend",
        pods: Pods::OfChild,
        end: End::Conditions(&["Complete", "Failed"]),
        exceptions: &[],
    },
    UnitKind {
        group: KUBEFLOW,
        version: "v1",
        kind: "PyTorchJob",
        plural: "pytorchjobs",
        suspend: RUN_POLICY_SUSPEND,
        pods: Pods::Sets(&[replicas("/spec/pytorchReplicaSpecs/*")]),
        end: KUBEFLOW_END,
        exceptions: &[Exception {
            at: "/spec/elasticPolicy",
            test: FieldTest::Present,
            reason: "an elastic job changes its number of pods",
        }],
    },
    UnitKind {
        group: KUBEFLOW,
        version: "v2beta1",
        kind: "MPIJob",
        plural: "mpijobs",
        suspend: RUN_POLICY_SUSPEND,
        pods: Pods::Sets(&[replicas("/spec/mpiReplicaSpecs/*")]),
        end: KUBEFLOW_END,
        exceptions: &[Exception {
            at: "/spec/launcherCreationPolicy",
            test: FieldTest::Text("WaitForWorkersReady"),
            reason: "the launcher starts after the workers",
        }],
    },
    UnitKind {
        group: "ray.io",
        version: "v1",
        kind: "RayJob",
        plural: "rayjobs",
        suspend: "/spec/suspend",
        pods: Pods::Sets(&[
            ray_head("/spec/rayClusterSpec/headGroupSpec"),
            ray_workers("/spec/rayClusterSpec/workerGroupSpecs/*"),
        ]),
        end: End::Field("/status/jobDeploymentStatus", &["Complete", "Failed"]),
        exceptions: &[Exception {
            at: "/spec/rayClusterSpec/enableInTreeAutoscaling",
            test: FieldTest::True,
            reason: RAY_AUTOSCALING,
        }],
    },
    UnitKind {
        group: "ray.io",
        version: "v1",
        kind: "RayCluster",
        plural: "rayclusters",
        suspend: "/spec/suspend",
        pods: Pods::Sets(&[
            ray_head("/spec/headGroupSpec"),
            ray_workers("/spec/workerGroupSpecs/*"),
        ]),
        end: End::Conditions(&[]),
        exceptions: &[Exception {
            at: "/spec/enableInTreeAutoscaling",
            test: FieldTest::True,
            reason: RAY_AUTOSCALING,
        }],
    },
    UnitKind {
        group: "leaderworkerset.x-k8s.io",
        version: "v1",
        kind: "LeaderWorkerSet",
        plural: "leaderworkersets",
        suspend: "",
        pods: Pods::Groups { size: "/spec/leaderWorkerTemplate/size" },
        end: End::Conditions(&[]),
        exceptions: &[Exception {
            at: "/spec/startupPolicy",
            test: FieldTest::Text("LeaderReady"),
            reason: "the workers start after their leader",
        }],
    },
];
