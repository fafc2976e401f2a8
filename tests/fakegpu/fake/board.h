// Where processes of one communicator meet: a folder of small files, each written once and seen whole. Everything is used with `big` held.
#ifndef FAKE_BOARD_H
#define FAKE_BOARD_H

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

namespace fake {

struct board {
  std::string folder;  // empty: all ranks are in this process

  explicit operator bool() const { return !folder.empty(); }

  std::string at(const char *kind, std::initializer_list<uint64_t> numbers) const {
    std::string path = folder + "/" + kind;
    for (uint64_t n : numbers) path += "." + std::to_string(n);
    return path;
  }
  bool has(const std::string &path) const { return !access(path.c_str(), F_OK); }
  void put(const std::string &path, const void *head, size_t n, const void *data = nullptr, size_t bytes = 0) const {
    static uint64_t count;
    std::string draft = folder + "/draft." + std::to_string(getpid()) + "." + std::to_string(count++);
    FILE *f = fopen(draft.c_str(), "wb");
    if (!f) return;  // the others have gone, with the folder
    fwrite(head, 1, n, f);
    if (bytes) fwrite(data, 1, bytes, f);
    fclose(f);
    rename(draft.c_str(), path.c_str());
  }
  std::vector<char> get(const std::string &path) const {
    std::vector<char> all;
    if (FILE *f = fopen(path.c_str(), "rb")) {
      struct stat s;
      fstat(fileno(f), &s);
      all.resize(s.st_size);
      all.resize(fread(all.data(), 1, all.size(), f));
      fclose(f);
    }
    return all;
  }
  void drop(const std::string &path) const { unlink(path.c_str()); }
  void clear() const {
    std::error_code none;
    std::filesystem::remove_all(folder, none);
  }
};

}  // namespace fake

#endif
