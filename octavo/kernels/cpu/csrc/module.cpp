// What Python sees. Arrays cross as addresses: the caller owns them, keeps them alive, and has checked their shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "decoder.h"
#include "run.h"

namespace nb = nanobind;
using namespace octavo;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

struct Weight {
  Matrix m;
  bool owned = true;
  Weight(int layout, int rows, int columns) {
    if (layout < 0 || layout >= kLayouts || rows < 1 || columns < 1) throw std::invalid_argument("impossible matrix");
    m = make_matrix(layout, rows, columns);
  }
  // Over packed bytes that lie elsewhere, and stay as long as this does.
  Weight(int layout, int rows, int columns, float unit, uintptr_t data) : owned(false) {
    m = shape_matrix(layout, rows, columns);
    m.unit = unit;
    m.data = at<uint8_t>(data);
  }
  ~Weight() {
    if (owned) free_matrix(m);
  }
  Weight(const Weight&) = delete;
};

struct Machine {
  Pool pool;
  Engine engine;
  Machine(int threads, bool pin, const std::string& isa) : pool(threads, pin), engine(kernels(isa), &pool) {}

  static const Kernels* kernels(const std::string& isa) {
    const Kernels* found = choose_kernels(isa.c_str());
    if (!found) throw std::invalid_argument("this processor or build cannot run the kernels for " + isa);
    return found;
  }
};

int checked(int planes) {
  if (planes != 1 && planes != 2) throw std::invalid_argument("activations have one or two planes");
  return planes;
}

using Parts = std::vector<std::tuple<const Weight*, int, uintptr_t>>;

Linear linear_of(const Parts& parts) {
  Linear linear;
  for (const auto& [weight, row, bias] : parts) {
    linear.parts.push_back({&weight->m, row, at<const float>(bias)});
    linear.rows = std::max(linear.rows, row + weight->m.rows);
  }
  return linear;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const char* name : {"avx512", "avx2vnni", "avx2", "neon", "plain"}) {
    if (choose_kernels(name)) names.emplace_back(name);
  }
  return names;
}

void bind_weights(nb::module_& m) {
  nb::class_<Weight>(m, "Weight")
      .def(nb::init<int, int, int>(), nb::arg("layout"), nb::arg("rows"), nb::arg("columns"))
      .def(nb::init<int, int, int, float, uintptr_t>(), nb::arg("layout"), nb::arg("rows"), nb::arg("columns"),
           nb::arg("unit"), nb::arg("data"))
      .def_prop_ro("unit", [](const Weight& w) { return w.m.unit; })
      .def_prop_ro("data", [](const Weight& w) { return reinterpret_cast<uintptr_t>(w.m.data); })
      .def_prop_ro("layout", [](const Weight& w) { return w.m.layout; })
      .def_prop_ro("rows", [](const Weight& w) { return w.m.rows; })
      .def_prop_ro("columns", [](const Weight& w) { return w.m.columns; })
      .def_prop_ro("nbytes", [](const Weight& w) { return w.m.stride * w.m.panels; })
      .def("unpack", [](const Weight& w, uintptr_t out) { unpack(w.m, at<float>(out)); });
  m.def("layout_for", &layout_for);
  m.def("packed_bytes", [](int layout, int rows, int columns) {
    const Matrix shape = shape_matrix(layout, rows, columns);
    return shape.stride * shape.panels;
  });
  m.def("instruction_sets", &instruction_sets);
}

void bind_machine(nb::module_& m) {
  nb::class_<Machine>(m, "Machine")
      .def(nb::init<int, bool, const std::string&>(), nb::arg("threads"), nb::arg("pin"), nb::arg("isa"))
      .def_prop_ro("isa", [](const Machine& x) { return std::string(x.engine.k.name); })
      .def_prop_ro("threads", [](const Machine& x) { return x.pool.size(); })
      .def("pack_blocks",
           [](Machine& x, Weight& w, int qtype, uintptr_t blocks, size_t row_bytes) {
             nb::gil_scoped_release free;
             pack_blocks(w.m, qtype, at<const uint8_t>(blocks), row_bytes, x.pool);
           })
      .def("pack_floats",
           [](Machine& x, Weight& w, int type, uintptr_t rows) {
             nb::gil_scoped_release free;
             pack_floats(w.m, type, at<const uint8_t>(rows), x.pool);
           })
      .def("lookup",
           [](Machine& x, int qtype, uintptr_t table, size_t row_bytes, int columns, int64_t rows, uintptr_t ids,
              int count, float multiplier, uintptr_t out) {
             const int64_t* id = at<const int64_t>(ids);
             for (int i = 0; i < count; ++i) {
               if (id[i] < 0 || id[i] >= rows) throw std::out_of_range("token id out of range");
             }
             nb::gil_scoped_release free;
             lookup(qtype, at<const uint8_t>(table), row_bytes, columns, id, count, multiplier, at<float>(out), x.pool);
           })
      .def("argmax",
           [](Machine& x, uintptr_t rows, int count, int64_t columns, size_t ld, uintptr_t best, uintptr_t places) {
             nb::gil_scoped_release free;
             x.pool.each(count, [&](int i) {
               at<int64_t>(places)[i] = x.engine.k.argmax(at<const float>(rows) + i * ld, columns, at<float>(best) + i);
             });
           })
      .def("linear", [](Machine& x, const Parts& parts, uintptr_t in, int tokens, int columns, int planes,
                       uintptr_t out, size_t ld) {
        const Linear linear = linear_of(parts);
        nb::gil_scoped_release free;
        x.engine.linear(linear, at<const float>(in), tokens, columns, checked(planes), at<float>(out), ld);
      })
      .def("likeliest", [](Machine& x, const Parts& parts, uintptr_t in, int tokens, int columns, int planes,
                           uintptr_t out, size_t ld, uintptr_t places) {
        const Linear linear = linear_of(parts);
        nb::gil_scoped_release free;
        x.engine.likeliest(linear, at<const float>(in), tokens, columns, checked(planes), at<float>(out), ld, at<int64_t>(places));
      });
}

// Length-prefixed strings of a GGUF file between `begin` and `end`. Skip: only walks, and gives the byte behind the
// last, or -1 where one would lie beyond the end.
int64_t skip_strings(uintptr_t file, uint64_t begin, uint64_t end, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t length;
    if (end - begin < 8) return -1;
    std::memcpy(&length, at<const uint8_t>(file) + begin, 8);
    begin += 8;
    if (length > end - begin) return -1;
    begin += length;
  }
  return (int64_t)begin;
}

nb::list read_strings(const nb::bytes& raw, uint64_t count) {
  nb::list texts;
  const char* data = raw.c_str();
  uint64_t at_byte = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t length;
    std::memcpy(&length, data + at_byte, 8);
    texts.append(nb::steal(PyUnicode_DecodeUTF8(data + at_byte + 8, (Py_ssize_t)length, "replace")));
    at_byte += 8 + length;
  }
  return texts;
}

void set_norms(LayerWeights& l, const std::vector<uintptr_t>& norms) {
  l.before_attention = at<const float>(norms.at(0));
  l.after_attention = at<const float>(norms.at(1));
  l.before_mlp = at<const float>(norms.at(2));
  l.after_mlp = at<const float>(norms.at(3));
  l.q_norm = at<const float>(norms.at(4));
  l.k_norm = at<const float>(norms.at(5));
}

void bind_decoder(nb::module_& m) {
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__",
           [](Decoder* self, Machine& x, int hidden, float eps, uintptr_t norm, int planes) {
             new (self) Decoder(&x.engine, hidden, eps, at<const float>(norm), checked(planes));
           },
           nb::keep_alive<1, 2>())
      .def("add",
           [](Decoder& self, const Parts& qkv, const Parts& o, const Parts& gate, const Parts& up, const Parts& down,
              const std::vector<uintptr_t>& norms, bool whole_norm, int heads, int kv_heads, int dim, float scale,
              int window, float softcap, int rope, int activation, float multiplier) {
             LayerWeights l;
             l.qkv = linear_of(qkv);
             l.o = linear_of(o);
             l.gate = linear_of(gate);
             l.up = linear_of(up);
             l.down = linear_of(down);
             if (l.gate.parts.size() != 1 || l.up.parts.size() != 1) throw std::invalid_argument("gate and up are one each");
             if (dim % 16 || dim > kMaxDim || heads % kv_heads) throw std::invalid_argument("impossible heads");
             set_norms(l, norms);
             l.whole_norm = whole_norm;
             l.heads = heads;
             l.kv_heads = kv_heads;
             l.dim = dim;
             l.scale = scale;
             l.window = window;
             l.softcap = softcap;
             l.rope = rope;
             l.activation = activation;
             l.multiplier = multiplier;
             self.add(std::move(l));
           })
      .def("place", [](Decoder& self, const std::vector<int>& groups, const std::vector<uintptr_t>& kv,
                       size_t block_stride, int block_size,
                       int kv_type) { self.place(groups, kv, block_stride, block_size, kv_type); })
      .def("forward", [](Decoder& self, int tokens, int rows, uintptr_t positions, uintptr_t query_start,
                         const std::vector<std::tuple<uintptr_t, size_t, uintptr_t>>& groups,
                         const std::vector<std::tuple<uintptr_t, uintptr_t, int>>& ropes, uintptr_t hidden) {
        Step step;
        step.tokens = tokens;
        step.rows = rows;
        step.positions = at<const int64_t>(positions);
        step.query_start = at<const int32_t>(query_start);
        for (const auto& [blocks, stride, slots] : groups) {
          step.groups.push_back({at<const int32_t>(blocks), stride, at<const int64_t>(slots)});
        }
        for (const auto& [table, index, width] : ropes) {
          step.ropes.push_back({at<const float>(table), at<const int64_t>(index), width});
        }
        step.hidden = at<float>(hidden);
        nb::gil_scoped_release free;
        self.forward(step);
      });
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Octavo's kernels for CPUs.";
  bind_weights(m);
  bind_machine(m);
  bind_decoder(m);
  m.def("skip_strings", &skip_strings);
  m.def("read_strings", [](const nb::bytes& raw, uint64_t count) {
    if (skip_strings((uintptr_t)raw.c_str(), 0, raw.size(), count) < 0) throw std::invalid_argument("strings end early");
    return read_strings(raw, count);
  });
}
