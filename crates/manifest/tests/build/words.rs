//! Objects as text.

use agentaflow_manifest::build::{json, yaml};
use serde_json::Value;

use crate::make;

#[test]
fn a_manifest_reads_from_the_top() {
    let made = make(
        "job --task-id ml_task_123 --image train:v1 --gpu v100 --timeout 1h -- python train.py",
    );
    assert_eq!(
        yaml(&made.objects).unwrap(),
        "\
apiVersion: batch/v1
kind: Job
metadata:
  name: gpu-job-ml-task-123
  labels:
    app.kubernetes.io/name: gpu-job-ml-task-123
spec:
  activeDeadlineSeconds: 3600
  backoffLimit: 3
  template:
    metadata:
      labels:
        app.kubernetes.io/name: gpu-job-ml-task-123
    spec:
      containers:
      - name: worker
        image: train:v1
        command:
        - python
        - train.py
        env:
        - name: WORKER_TYPE
          value: gpu
        - name: CUDA_VISIBLE_DEVICES
          value: \"0\"
        - name: TASK_ID
          value: ml_task_123
        resources:
          limits:
            cpu: 8000m
            memory: 16Gi
            nvidia.com/gpu: \"1\"
          requests:
            cpu: 4000m
            memory: 8Gi
            nvidia.com/gpu: \"1\"
        volumeMounts:
        - name: shm
          mountPath: /dev/shm
      nodeSelector:
        accelerator: nvidia-tesla-v100
      restartPolicy: OnFailure
      tolerations:
      - key: nvidia.com/gpu
        operator: Exists
        effect: NoSchedule
      volumes:
      - name: shm
        emptyDir:
          medium: Memory
          sizeLimit: 2Gi
  ttlSecondsAfterFinished: 3600
"
    );
}

#[test]
fn several_objects_are_several_documents_or_one_list() {
    let made = make("model-server --name llm --image vllm:v1");
    let text = yaml(&made.objects).unwrap();
    assert_eq!(text.matches("\n---\n").count(), 1);
    let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    assert_eq!(read, made.objects);
    let list: Value = serde_json::from_str(&json(&made.objects).unwrap()).unwrap();
    assert_eq!((&list["kind"], &list["items"][1]), (&Value::from("List"), &made.objects[1]));
    let one = make("pvc --name c");
    assert_eq!(
        serde_json::from_str::<Value>(&json(&one.objects).unwrap()).unwrap(),
        one.objects[0]
    );
}

#[test]
fn a_file_inside_of_an_object_is_written_as_lines() {
    let text = yaml(&make("time-slicing").objects).unwrap();
    assert!(text.contains("  config.yaml: |\n    version: v1\n    sharing:\n"), "{text}");
}
