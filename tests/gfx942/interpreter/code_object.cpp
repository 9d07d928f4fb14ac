// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "code.h"
#include "fault.h"
#include "memory.h"
#include "metadata.h"

namespace gfx942 {
namespace {

constexpr uint32_t kMachineAmdgpu = 224, kFlagsMach = 0xff;
constexpr uint32_t kNoteMetadata = 32;
constexpr uint32_t kRelative64 = 13, kAbs64 = 3;  // R_AMDGPU_*

template <class T>
const T& at(std::span<const uint8_t> elf, uint64_t offset, uint64_t count = 1) {
  if (offset > elf.size() || count > (elf.size() - offset) / sizeof(T)) throw Fault("code object: it ends too early");
  return *reinterpret_cast<const T*>(elf.data() + offset);
}

}  // namespace

CodeObject::CodeObject(std::span<const uint8_t> elf) {
  const auto& head = at<Elf64_Ehdr>(elf, 0);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_machine != kMachineAmdgpu)
    throw Fault("code object: expected an ELF file for AMD GPUs");
  chip_ = chip_of_machine(head.e_flags & kFlagsMach);
  if (!chip_)
    throw Fault(std::string("code object: expected one for ") + chip_names() + ", got machine flags " +
                std::to_string(head.e_flags & kFlagsMach));
  load(elf);
}

CodeObject::~CodeObject() {
  if (!image_) return;
  memory().remove(image_);
  munmap(image_, image_bytes_);
}

void CodeObject::load(std::span<const uint8_t> elf) {
  const auto& head = at<Elf64_Ehdr>(elf, 0);
  const auto* segments = &at<Elf64_Phdr>(elf, head.e_phoff, head.e_phnum);
  for (int s = 0; s < head.e_phnum; ++s)
    if (segments[s].p_type == PT_LOAD) image_bytes_ = std::max(image_bytes_, segments[s].p_vaddr + segments[s].p_memsz);
  void* buffer = mmap(nullptr, image_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) throw Fault("code object: no memory for " + std::to_string(image_bytes_) + " bytes");
  image_ = static_cast<uint8_t*>(buffer);
  memory().add(image_, image_bytes_);

  for (int s = 0; s < head.e_phnum; ++s) {
    const Elf64_Phdr& p = segments[s];
    if (p.p_type != PT_LOAD) continue;
    std::memcpy(image_ + p.p_vaddr, &at<uint8_t>(elf, p.p_offset, p.p_filesz), p.p_filesz);
    if (p.p_flags & PF_X) code_end_ = image_ + p.p_vaddr + p.p_filesz;
  }
  const auto* sections = &at<Elf64_Shdr>(elf, head.e_shoff, head.e_shnum);
  const Elf64_Shdr& section_names = at<Elf64_Shdr>(elf, head.e_shoff + head.e_shstrndx * sizeof(Elf64_Shdr));
  for (int s = 0; s < head.e_shnum; ++s) {
    if (&at<char>(elf, section_names.sh_offset + sections[s].sh_name) == std::string(".debug_line"))
      with_lines_.assign(elf.begin(), elf.end());
    if (sections[s].sh_type != SHT_SYMTAB && sections[s].sh_type != SHT_DYNSYM) continue;
    const auto* table = &at<Elf64_Sym>(elf, sections[s].sh_offset, sections[s].sh_size / sizeof(Elf64_Sym));
    const Elf64_Shdr& names = sections[sections[s].sh_link];
    for (uint64_t k = 0; k < sections[s].sh_size / sizeof(Elf64_Sym); ++k) {
      const std::string name = &at<char>(elf, names.sh_offset + table[k].st_name);
      if (!name.empty() && table[k].st_shndx != SHN_UNDEF) symbols_[name] = {table[k].st_value, table[k].st_size};
    }
  }
  for (int s = 0; s < head.e_phnum; ++s)
    if (segments[s].p_type == PT_DYNAMIC) relocate(segments[s].p_vaddr, segments[s].p_memsz);
  for (int s = 0; s < head.e_phnum; ++s)
    if (segments[s].p_type == PT_NOTE)
      read_metadata({&at<uint8_t>(elf, segments[s].p_offset, segments[s].p_filesz), segments[s].p_filesz});
}

void CodeObject::relocate(uint64_t dynamic, uint64_t bytes) {
  const auto* entry = reinterpret_cast<const Elf64_Dyn*>(image_ + dynamic);
  uint64_t table = 0, table_bytes = 0, symbols = 0;
  for (uint64_t k = 0; k < bytes / sizeof(Elf64_Dyn) && entry[k].d_tag != DT_NULL; ++k) {
    if (entry[k].d_tag == DT_RELA) table = entry[k].d_un.d_ptr;
    if (entry[k].d_tag == DT_RELASZ) table_bytes = entry[k].d_un.d_val;
    if (entry[k].d_tag == DT_SYMTAB) symbols = entry[k].d_un.d_ptr;
  }
  const auto* rela = reinterpret_cast<const Elf64_Rela*>(image_ + table);
  for (uint64_t k = 0; k < table_bytes / sizeof(Elf64_Rela); ++k) {
    const uint64_t type = ELF64_R_TYPE(rela[k].r_info);
    uint64_t value = reinterpret_cast<uint64_t>(image_) + rela[k].r_addend;
    if (type == kAbs64)
      value += reinterpret_cast<const Elf64_Sym*>(image_ + symbols)[ELF64_R_SYM(rela[k].r_info)].st_value;
    else if (type != kRelative64)
      throw Fault("code object: relocation " + std::to_string(type) + " is not implemented");
    std::memcpy(image_ + rela[k].r_offset, &value, 8);
  }
}

void CodeObject::read_metadata(std::span<const uint8_t> notes) {
  for (uint64_t offset = 0; offset + sizeof(Elf64_Nhdr) <= notes.size();) {
    const auto& note = at<Elf64_Nhdr>(notes, offset);
    const uint64_t content = offset + sizeof note + (note.n_namesz + 3) / 4 * 4;
    offset = content + (note.n_descsz + 3) / 4 * 4;
    if (note.n_type != kNoteMetadata) continue;
    const Value root = MessagePack({&at<uint8_t>(notes, content, note.n_descsz), note.n_descsz}).read();
    const Value* kernels = root.find("amdhsa.kernels");
    if (!kernels) continue;
    for (const Value& k : kernels->list) {
      Code code;
      code.name = k.text_at(".name");
      code.symbol = k.text_at(".symbol");
      code.kernarg_bytes = uint32_t(k.number_at(".kernarg_segment_size"));
      code.lds_bytes = uint32_t(k.number_at(".group_segment_fixed_size"));
      code.scratch_bytes = uint32_t(k.number_at(".private_segment_fixed_size"));
      code.most_threads = uint32_t(k.number_at(".max_flat_workgroup_size"));
      code.vgprs = uint32_t(k.number_at(".vgpr_count"));
      code.agprs = uint32_t(k.number_at(".agpr_count"));
      code.sgprs = uint32_t(k.number_at(".sgpr_count"));
      code.vgpr_spills = uint32_t(k.number_at(".vgpr_spill_count"));
      code.sgpr_spills = uint32_t(k.number_at(".sgpr_spill_count"));
      if (const Value* arguments = k.find(".args"))
        for (const Value& a : arguments->list)
          code.arguments.push_back(
              {a.text_at(".value_kind"), uint32_t(a.number_at(".offset")), uint32_t(a.number_at(".size"))});
      kernels_[code.name] = std::move(code);
    }
  }
}

std::vector<std::string> CodeObject::names() const {
  std::vector<std::string> all;
  for (const auto& [name, code] : kernels_) all.push_back(name);
  return all;
}

std::pair<void*, size_t> CodeObject::variable(const std::string& name) const {
  const auto found = symbols_.find(name);
  if (found == symbols_.end()) return {nullptr, 0};
  return {image_ + found->second.address, found->second.bytes};
}

std::string CodeObject::source_of(uint64_t address) const { return sources_of({&address, 1})[0]; }

namespace {

// A file in the temporary folder while it is needed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::span<const uint8_t> bytes) {
    const int file = mkstemp(path_.data());
    if (file < 0) return;
    written_ = write(file, bytes.data(), bytes.size()) == ssize_t(bytes.size());
    close(file);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  bool written() const { return written_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "gfx942-XXXXXX";
  bool written_ = false;
};

}  // namespace

// LLVM's symbolizer reads the file, and the addresses of a line each. An empty line ends what it says of an address.
std::vector<std::string> CodeObject::sources_of(std::span<const uint64_t> addresses) const {
  std::vector<std::string> texts(addresses.size());
  if (with_lines_.empty() || addresses.empty()) return texts;
  std::ostringstream asked;
  for (uint64_t a : addresses) asked << "0x" << std::hex << a - reinterpret_cast<uint64_t>(image_) << "\n";
  const std::string lines = asked.str();
  const TemporaryFile object(with_lines_);
  const TemporaryFile input({reinterpret_cast<const uint8_t*>(lines.data()), lines.size()});
  if (!object.written() || !input.written()) return texts;
  const std::string command =
      "$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer) -f=none -s --obj=" + object.path() + " <" +
      input.path() + " 2>/dev/null";
  FILE* out = popen(command.c_str(), "r");
  if (!out) return texts;
  char line[512];
  for (size_t n = 0; n < texts.size() && std::fgets(line, sizeof line, out);) {
    std::string place = line;
    while (!place.empty() && std::isspace(uint8_t(place.back()))) place.pop_back();
    if (place.empty())
      ++n;
    else if (place.find("??") == std::string::npos)
      texts[n] += (texts[n].empty() ? "" : " in ") + place;
  }
  pclose(out);
  return texts;
}

const Code& CodeObject::kernel(const std::string& name) {
  const std::lock_guard lock(decoding_);
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) throw Fault("code object: it has no kernel " + name);
  if (found->second.instructions.empty()) decode(found->second);
  return found->second;
}

// The descriptor is 64 bytes: https://llvm.org/docs/AMDGPUUsage.html#kernel-descriptor
void CodeObject::decode(Code& code) {
  const auto descriptor = symbols_.find(code.symbol), text = symbols_.find(code.name);
  if (descriptor == symbols_.end() || text == symbols_.end())
    throw Fault("code object: kernel " + code.name + " has no descriptor or no code");
  const uint8_t* d = image_ + descriptor->second.address;
  const auto word = [&](int offset) {
    uint32_t x;
    std::memcpy(&x, d + offset, 4);
    return x;
  };
  int64_t entry;
  std::memcpy(&entry, d + 16, 8);
  const uint32_t rsrc1 = word(48);
  code.lds_bytes = word(0);
  code.scratch_bytes = word(4);
  code.rsrc2 = word(52);
  code.properties = word(56);
  code.user_sgprs = code.rsrc2 >> 1 & 31;
  code.sets_fp16_ovfl = rsrc1 >> 26 & 1;
  code.mode = (rsrc1 >> 12 & 0xff) | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9;
  code.base = reinterpret_cast<uint64_t>(image_);
  code.object = this;
  const uint8_t* begin = d + entry;  // assembly may not say how long it is
  const uint8_t* end = text->second.bytes ? begin + text->second.bytes : code_end_;
  // Where arguments are preloaded a kernel begins behind 256 bytes, which load them for firmware that does not.
  if (code.properties >> 16) begin += 256;
  code.instructions = disassemble(*chip_, begin, end);
}

}  // namespace gfx942
