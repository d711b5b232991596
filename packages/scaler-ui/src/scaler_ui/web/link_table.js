// NiceGUI's table with links in cells. They are what the format of a column makes of a value: slots would take twice as long, and lose the focus.
import { h, toRaw } from "vue";
import { convertDynamicProperties } from "../../static/utils/dynamic_properties.js";

// As scaler_ui.model.addresses.address: "." and ".." would be folders.
const encoded = (name) => encodeURIComponent(/^\.\.?;*$/.test(name) ? `${name};` : name).replaceAll("%3A", ":").replaceAll("%40", "@");

// A column that links names a place and the fields of the row that are the names in the address.
const address = ([place, ...fields], row) =>
  fields.every((field) => row[field] !== "") && `/${place}/${fields.map((field) => encoded(row[field])).join("/")}`;

// A long name is cut before its last colon, since the names of a host's agents and workers differ behind it.
const split = (text) => {
  const at = text.lastIndexOf(":");
  return at < 0 ? text : [h("span", { class: "begin" }, text.slice(0, at)), text.slice(at)];
};

const filled = (column) => {
  convertDynamicProperties(column, false);
  const { format = (value) => value, classes = "", link, bar, ending, name, label } = column;
  const isBlank = (row) => row[name] === "" || row[name] === null;
  return {
    ...column,
    format: (value, row) => {
      const text = format(value), href = link && address(link, row);
      if (href) return h("a", { class: "nicegui-link", href }, ending ? split(text) : text);
      return bar ? h("span", { class: "share", style: { "--share": `${value}%` } }, `${text}%`) : text;
    },
    classes: (row) => `${typeof classes === "function" ? classes(row) : classes}${isBlank(row) ? " blank" : ""}`,
    style: { "--label": `"${label}"` },
  };
};

export default {
  template: `<q-table ref="qRef" :columns="filled" :rows="raw" />`,
  props: { columns: Array, rows: Array },
  computed: {
    filled() { return this.columns.map((column) => filled(toRaw(column))); },
    raw() { return toRaw(this.rows); },  // of a thousand cells Vue need not watch each
  },
};
