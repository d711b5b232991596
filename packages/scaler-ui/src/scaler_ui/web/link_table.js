// NiceGUI's table with links in cells. A slot would do as well, but every update would make its cells anew, and the focus would be lost.
import { convertDynamicProperties } from "../../static/utils/dynamic_properties.js";

// As scaler_ui.model.addresses.address: "." and ".." would be folders.
const encoded = (name) => encodeURIComponent(/^\.\.?;*$/.test(name) ? `${name};` : name).replaceAll("%3A", ":").replaceAll("%40", "@");

export default {
  template: `<q-table ref="qRef" :columns="converted">
    <template #body-cell="cell">
      <q-td :props="cell" :data-label="cell.col.label" :class="{blank: cell.value === '' || cell.value === null}"
        ><a v-if="address(cell)" class="nicegui-link" :href="address(cell)">{{ cell.value }}</a
        ><span v-else-if="cell.col.bar" class="share" :style="{'--share': cell.row[cell.col.name] + '%'}">{{ cell.value }}%</span
        ><template v-else>{{ cell.value }}</template></q-td>
    </template>
  </q-table>`,
  props: { columns: Array },
  computed: {
    converted() {
      this.columns.forEach((column) => convertDynamicProperties(column, false));
      return this.columns;
    },
  },
  methods: {
    // A column that links names a place and the fields of the row that are the names in the address.
    address({ col: { link }, row }) {
      const names = link?.slice(1).map((field) => row[field]);
      return names?.every((name) => name !== "") ? `/${link[0]}/${names.map(encoded).join("/")}` : "";
    },
  },
};
