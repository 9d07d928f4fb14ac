// SPDX-License-Identifier: Apache-2.0
// Runs a Problem by the C API: tensors in memory of exactly their size, calls with exactly the workspace of the query.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "buffer.h"
#include "mlstm_problem.h"

enum class Layout { bhsd, bshd, gaps };  // gaps: bhsd with unused elements after each row

class Tensor {  // (B, NH, S, D)
 public:
  Tensor(xlstm_dtype dtype, int64_t batch, int64_t heads, int64_t length, int64_t d, Layout layout = Layout::bhsd)
      : dtype_(dtype),
        batch_(batch),
        heads_(heads),
        length_(length),
        d_(d),
        row_(layout == Layout::gaps ? d + 3 : d),
        element_(dtype == XLSTM_FLOAT64   ? 8
                 : dtype == XLSTM_FLOAT32 ? 4
                                          : 2),
        buffer_(batch * heads * length * row_ * element_) {
    const int64_t heads_stride = layout == Layout::bshd ? row_ : length * row_;
    const int64_t tokens_stride = layout == Layout::bshd ? heads * row_ : row_;
    api_ = {buffer_.data(), dtype, {heads * length * row_, heads_stride, tokens_stride}};
  }
  ~Tensor() {  // no call wrote between the rows
    const auto* bytes = static_cast<const unsigned char*>(buffer_.data());
    const size_t used = d_ * element_, row = row_ * element_;
    for (size_t at = 0; at < buffer_.size(); ++at)
      if (at % row >= used) CHECK(bytes[at] == Buffer::kUnset, "wrote into a gap");
  }

  const xlstm_tensor& api() const { return api_; }
  void* data() { return buffer_.data(); }

  void put(const Values& x) {
    int64_t next = 0;
    each([&](void* p) {
      const double value = x[next++];
      const float narrow = float(value);
      const uint16_t bits = dtype_ == XLSTM_BFLOAT16 ? kBfloat16.encode(value) : kFloat16.encode(value);
      if (dtype_ == XLSTM_FLOAT64)
        std::memcpy(p, &value, 8);
      else if (dtype_ == XLSTM_FLOAT32)
        std::memcpy(p, &narrow, 4);
      else
        std::memcpy(p, &bits, 2);
    });
  }
  Values values() {
    Values x;
    each([&](const void* p) {
      double value;
      float narrow;
      uint16_t bits;
      if (dtype_ == XLSTM_FLOAT64) {
        std::memcpy(&value, p, 8);
      } else if (dtype_ == XLSTM_FLOAT32) {
        std::memcpy(&narrow, p, 4);
        value = narrow;
      } else {
        std::memcpy(&bits, p, 2);
        value = (dtype_ == XLSTM_BFLOAT16 ? kBfloat16 : kFloat16).decode(bits);
      }
      x.push_back(value);
    });
    return x;
  }

 private:
  template <class F>
  void each(F&& f) {
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t t = 0; t < length_; ++t)
          for (int64_t d = 0; d < d_; ++d)
            f(static_cast<char*>(buffer_.data()) +
              (b * api_.stride[0] + h * api_.stride[1] + t * api_.stride[2] + d) * element_);
  }

  xlstm_dtype dtype_;
  int64_t batch_, heads_, length_, d_, row_, element_;
  Buffer buffer_;
  xlstm_tensor api_;
};

// The states c, n and m of every walk.
struct States {
  Tensor c, n, m;

  explicit States(const Problem& p)
      : c(wide(p.dtype), p.shape.sequences(), p.shape.heads, p.shape.dqk, p.shape.dhv),
        n(wide(p.dtype), p.shape.sequences(), p.shape.heads, 1, p.shape.dqk),
        m(wide(p.dtype), p.shape.sequences(), p.shape.heads, 1, 1) {}
  void put(const Values& c_values, const Values& n_values, const Values& m_values) {
    c.put(c_values), n.put(n_values), m.put(m_values);
  }
};

inline Tensor token_tensor(const Problem& p, xlstm_dtype dtype, int64_t d, Layout layout) {
  return Tensor(dtype, p.shape.batch, p.shape.heads, p.shape.length, d, layout);
}

struct Inputs {
  Tensor q, k, v, i, f;
  std::optional<States> initial;
  std::vector<int64_t> cu_seqlens;
  xlstm_mlstm api{};

  Inputs(const Problem& p, Layout layout)
      : q(token_tensor(p, p.dtype, p.shape.dqk, layout)),
        k(token_tensor(p, p.dtype, p.shape.dqk, layout)),
        v(token_tensor(p, p.dtype, p.shape.dhv, layout)),
        i(token_tensor(p, p.gate_dtype, 1, layout)),
        f(token_tensor(p, p.gate_dtype, 1, layout)),
        cu_seqlens(p.shape.cu_seqlens) {
    const Shape& s = p.shape;
    q.put(p.q), k.put(p.k), v.put(p.v), i.put(p.i), f.put(p.f);
    api.batch = s.batch, api.heads = s.heads, api.length = s.length, api.dqk = s.dqk, api.dhv = s.dhv;
    api.chunk_size = s.chunk, api.gate = p.gate, api.eps = p.eps;
    api.normalize = p.normalize, api.normalizer_grad = p.normalizer_grad;
    api.q = q.api(), api.k = k.api(), api.v = v.api(), api.i = i.api(), api.f = f.api();
    if (!cu_seqlens.empty()) api.cu_seqlens = cu_seqlens.data(), api.sequences = s.sequences();
    if (p.c.empty()) return;
    initial.emplace(p).put(p.c, p.n, p.m);
    api.c_initial = initial->c.data(), api.n_initial = initial->n.data(), api.m_initial = initial->m.data();
  }
};

struct ForwardCall {
  Inputs in;
  Tensor h, l;
  States last;
  xlstm_mlstm_forward api{};

  ForwardCall(const Problem& p, Layout layout)
      : in(p, layout),
        h(token_tensor(p, p.dtype, p.shape.dhv, layout)),
        l(token_tensor(p, wide(p.dtype), 1, Layout::bhsd)),
        last(p) {
    api.in = in.api;
    api.h = h.api(), api.l = l.data();
    api.c_last = last.c.data(), api.n_last = last.n.data(), api.m_last = last.m.data();
  }
  Solution solution() { return {h.values(), l.values(), last.c.values(), last.n.values(), last.m.values()}; }
};

struct Gradients {
  Values q, k, v, i, f, c, n, m;
};

struct BackwardCall {
  Inputs in;
  Tensor h, dh, l, dq, dk, dv, di, df;
  std::optional<States> last, initial;
  xlstm_mlstm_backward api{};

  BackwardCall(const Problem& p, const Solution& forward, Layout layout)
      : in(p, layout),
        h(token_tensor(p, p.dtype, p.shape.dhv, layout)),
        dh(token_tensor(p, p.dtype, p.shape.dhv, layout)),
        l(token_tensor(p, wide(p.dtype), 1, Layout::bhsd)),
        dq(token_tensor(p, p.dtype, p.shape.dqk, layout)),
        dk(token_tensor(p, p.dtype, p.shape.dqk, layout)),
        dv(token_tensor(p, p.dtype, p.shape.dhv, layout)),
        di(token_tensor(p, p.gate_dtype, 1, layout)),
        df(token_tensor(p, p.gate_dtype, 1, layout)) {
    h.put(forward.h), dh.put(p.dh), l.put(forward.l);
    api.in = in.api;
    api.h = h.api(), api.dh = dh.api(), api.l = l.data();
    api.dq = dq.api(), api.dk = dk.api(), api.dv = dv.api(), api.di = di.api(), api.df = df.api();
    if (!p.dc.empty()) {
      last.emplace(p).put(p.dc, p.dn, p.dm);
      api.dc_last = last->c.data(), api.dn_last = last->n.data(), api.dm_last = last->m.data();
    }
    if (p.c.empty()) return;
    initial.emplace(p);
    api.dc_initial = initial->c.data(), api.dn_initial = initial->n.data(), api.dm_initial = initial->m.data();
  }
  Gradients gradients() {
    Gradients g{dq.values(), dk.values(), dv.values(), di.values(), df.values(), {}, {}, {}};
    if (initial) g.c = initial->c.values(), g.n = initial->n.values(), g.m = initial->m.values();
    return g;
  }
};

// The settings of a call: threads, memory layout, and the caller's executor if there is one.
struct Runner {
  int32_t threads = 1;
  Layout layout = Layout::bhsd;
  void (*parallel)(void*, int32_t, void (*)(void*, int32_t), void*) = nullptr;
  void* self = nullptr;
};

// Queries the workspace, then calls with exactly that workspace at an unaligned address.
template <class Query, class Call, class Parameters>
xlstm_status run(Query query, Call call, const Parameters& p, const Runner& r) {
  const size_t bytes = query(&p, r.threads);
  CHECK(bytes > 0, "%s", xlstm_last_error());
  Buffer workspace(bytes, 8);
  const xlstm_runtime runtime{workspace.data(), bytes, r.threads, r.parallel, r.self, nullptr};
  const xlstm_status status = call(&p, &runtime);
  CHECK(status == XLSTM_OK, "%s", xlstm_last_error());
  return status;
}

inline Solution chunkwise(const Problem& p, const Runner& r = {}) {
  ForwardCall call(p, r.layout);
  run(xlstm_mlstm_chunkwise_workspace, xlstm_mlstm_chunkwise, call.api, r);
  return call.solution();
}

inline Solution recurrent(const Problem& p, const Runner& r = {}) {
  ForwardCall call(p, r.layout);
  run(xlstm_mlstm_recurrent_workspace, xlstm_mlstm_recurrent, call.api, r);
  return call.solution();
}

inline Gradients backward(const Problem& p, const Solution& forward, const Runner& r = {}) {
  BackwardCall call(p, forward, r.layout);
  run(xlstm_mlstm_backward_workspace, xlstm_mlstm_backward_pass, call.api, r);
  return call.gradients();
}

// The largest difference, relative to the largest expected value.
inline double distance(const Values& x, const Values& expected) {
  double difference = 0, size = 0;
  for (size_t e = 0; e < expected.size(); ++e) {
    difference = std::max(difference, x[e] == expected[e] ? 0 : std::fabs(x[e] - expected[e]));
    if (std::isnan(x[e]) != std::isnan(expected[e])) return INFINITY;
    size = std::max(size, std::fabs(expected[e]));
  }
  return x.size() != expected.size() ? INFINITY : size > 0 ? difference / size : difference;
}

inline bool same_bits(const Values& x, const Values& y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0);
}

inline std::string described(const Problem& p, const Runner& r) {
  const Shape& s = p.shape;
  const char* dtypes[] = {"float32", "bfloat16", "float16", "float64"};
  std::string text = std::string(dtypes[p.dtype]) + (p.gate_dtype == p.dtype ? "" : " wide gates") +
                     (p.gate == XLSTM_GATE_EXP ? " exp"
                      : p.normalize            ? " sigmoid"
                                               : " sigmoid not normalised") +
                     (p.normalizer_grad ? "" : " constant normaliser") + (p.c.empty() ? "" : " states") + " B" +
                     std::to_string(s.batch) + " NH" + std::to_string(s.heads) + " S" + std::to_string(s.length) +
                     " DHQK" + std::to_string(s.dqk) + " DHHV" + std::to_string(s.dhv) + " chunk" +
                     std::to_string(s.chunk) + " sequences" + std::to_string(s.sequences()) + " layout" +
                     std::to_string(int(r.layout)) + " threads" + std::to_string(r.threads);
  return text;
}
