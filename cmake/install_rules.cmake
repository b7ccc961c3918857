# What `cmake --install` puts in place: the headers, a CMake package and a pkg-config file. All of it is plain text that
# finds itself by its own place, so the installed tree can be moved, and serves every architecture.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(microscale_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/microscale")
set(microscale_pkgconfig_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")

install(TARGETS microscale EXPORT microscale FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

# There is no dependency to find, so the exported target is the whole package file.
install(EXPORT microscale NAMESPACE microscale:: DESTINATION "${microscale_package_dir}" FILE microscale-config.cmake)

write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/microscale-config-version.cmake"
  COMPATIBILITY SameMinorVersion # while the major version is 0, a minor version may break its users
  ARCH_INDEPENDENT
)
install(FILES "${PROJECT_BINARY_DIR}/microscale-config-version.cmake" DESTINATION "${microscale_package_dir}")

cmake_path(
  RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR
  BASE_DIRECTORY "${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig"
  OUTPUT_VARIABLE microscale_includedir_from_pkgconfig
)
configure_file("${PROJECT_SOURCE_DIR}/cmake/microscale.pc.in" "${PROJECT_BINARY_DIR}/microscale.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/microscale.pc" DESTINATION "${microscale_pkgconfig_dir}")

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
