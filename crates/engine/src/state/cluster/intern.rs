//! Dense numbers for request shapes, GPU models and named resources.

use std::sync::Arc;

use super::room::{ModelIdx, ResIdx};
use super::shape::{self, Shape, ShapeIdx, ShapeKey};

use crate::model::name::{GpuModel, ResourceName};
use crate::model::request::Request;

use super::{Cluster, IDLE_SHAPES};

impl Cluster {
    /// Index of a request's shape, without the `closed` models.
    pub(crate) fn intern(&mut self, request: &Arc<Request>, closed: Vec<ModelIdx>) -> ShapeIdx {
        let key = ShapeKey { request: request.clone(), closed };
        if let Some(shape) = self.shape_by_key.get(&key) {
            return *shape;
        }
        self.drop_idle_shapes();
        let mut need = shape::plain_need(request);
        for (name, amount) in &request.resources {
            need.named.push((self.resource(name), *amount as i64));
        }
        need.named.sort_unstable();
        self.shapes_made += 1;
        let mut shape = Shape::new(key, need, &self.models);
        let key = shape.key.clone();
        shape.stamp = self.shapes_made;
        let index = self.vacant_shapes.pop().unwrap_or_else(|| {
            self.shapes.push(None);
            self.shapes.len() as ShapeIdx - 1
        });
        self.shapes[index as usize] = Some(shape);
        self.shape_by_key.insert(key, index);
        self.idle_shapes += 1;
        index
    }

    pub(crate) fn shape(&self, shape: ShapeIdx) -> &Shape {
        self.shapes[shape as usize].as_ref().expect("a shape index in use has a shape")
    }

    pub(crate) fn has_shape(&self, shape: ShapeIdx) -> bool {
        self.shapes.get(shape as usize).is_some_and(Option::is_some)
    }

    pub(crate) fn use_shape(&mut self, shape: ShapeIdx) {
        let shape = self.shapes[shape as usize].as_mut().expect("a shape index in use has a shape");
        self.idle_shapes -= usize::from(shape.users == 0);
        shape.users += 1;
    }

    pub(crate) fn unuse_shape(&mut self, shape: ShapeIdx) {
        let shape = self.shapes[shape as usize].as_mut().expect("a shape index in use has a shape");
        shape.users -= 1;
        self.idle_shapes += usize::from(shape.users == 0);
    }

    /// Index of a GPU model; adds an unknown one.
    pub(crate) fn model(&mut self, name: &GpuModel) -> ModelIdx {
        if let Some(known) = self.models.iter().position(|model| model == name) {
            return known as ModelIdx;
        }
        self.models.push(name.clone());
        for shape in self.shapes.iter_mut().flatten() {
            shape.learn_models(&self.models);
        }
        self.models.len() as ModelIdx - 1
    }

    /// Index of a named resource; adds an unknown one.
    pub(crate) fn resource(&mut self, name: &ResourceName) -> ResIdx {
        if let Some(known) = self.resource_numbers.get(name) {
            return *known;
        }
        let next = self.resources.len() as ResIdx;
        self.resources.push(name.clone());
        self.resource_numbers.insert(name.clone(), next);
        next
    }

    pub(crate) fn resource_name(&self, resource: ResIdx) -> &ResourceName {
        &self.resources[resource as usize]
    }

    fn drop_idle_shapes(&mut self) {
        if self.idle_shapes < IDLE_SHAPES {
            return;
        }
        for (index, shape) in self.shapes.iter_mut().enumerate() {
            if let Some(idle) = shape.take_if(|shape| shape.users == 0) {
                self.shape_by_key.remove(&idle.key);
                self.vacant_shapes.push(index as ShapeIdx);
            }
        }
        self.idle_shapes = 0;
    }
}
